"""Training data: datasets as TFRecord files, of which every task reads its own shard.

    from tfdist.data import cifar10
    print(cifar10.write("/data/cifar10", "digits"))          # or `tfdist data cifar10`
    train = cifar10.dataset("/data/cifar10", "train", input_context, batch_size=64, shuffle=True)

- `tfdist.data.cifar10`: CIFAR-10 as TFRecords: the writer and the sharded `tf.data` reader.
- `tfdist.data.cifar10_examples`: the encoding of its records.
- `tfdist.data.mnist`: MNIST, Fashion-MNIST, or digits in their size, as arrays.
- `tfdist.data.sources`: the sources of the images: CIFAR-10 or scikit-learn's digits.
- `tfdist.data.records`: writes TFRecord files and their manifest atomically, and verifies them.
- `tfdist.data.verify`: finds damaged TFRecord files.
- `tfdist.data.augmentation`: random crops and flips of whole batches.
- `tfdist.data.sharding`: passes a sharded dataset to Keras.
- `tfdist.data.position`: the position of a training in its data.

This package imports none of them.
"""
