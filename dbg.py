import tensorflow as tf

t = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
v = tf.Variable(tf.zeros([5], tf.int64))


@tf.function
def f(ids):
    a = t.lookup(ids)
    b = tf.reshape(a, [-1])
    c = tf.raw_ops.ResourceGather(resource=v.handle, indices=tf.maximum(b, 0), dtype=tf.int64)
    d = tf.ensure_shape(c, b.shape)
    print(
        a.shape,
        b.shape,
        c.shape,
        d.shape,
        (d == ids).shape,
        ((b >= 0) & (d == ids)).shape,
        ids.shape,
    )


f(tf.constant([1, 2], tf.int64))
