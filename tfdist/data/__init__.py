"""Training data: written once as TFRecords, read by every task in its own shard.

    from tfdist.data import cifar10
    print(cifar10.write("/data/cifar10", "digits"))          # or `tfdist data cifar10`
    train = cifar10.dataset("/data/cifar10", "train", input_context, batch_size=64, shuffle=True)

- `tfdist.data.cifar10`: CIFAR-10 as TFRecords: the writer and the sharded `tf.data` reader.
- `tfdist.data.sources`: where the images come from: a download, an archive, scikit-learn's digits.
- `tfdist.data.records`: TFRecord files and their manifest: written whole or not at all, verified.

- `tfdist.data.augmentation`: random crops and reflections of whole batches.
- `tfdist.data.memory`: how much memory there is for data.

Nothing is imported here, and none but `augmentation` imports TensorFlow before it reads or writes
records.
"""
