"""Shared by the TensorFlow programs: a quiet, deterministic TensorFlow and a small network."""
import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", TF_ENABLE_ONEDNN_OPTS="0")
import tensorflow as tf
import protocol

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.experimental.enable_op_determinism()


class Network(tf.Module):
    """One convolution and one layer; `train` is one step and returns the loss."""

    def __init__(self, side, classes):
        super().__init__()
        init = lambda *shape: tf.random.stateless_normal(shape, (protocol.SEED, len(shape)), stddev=0.1)
        self.kernel = tf.Variable(init(3, 3, 3, 4), name="kernel")
        self.weight = tf.Variable(init(4 * ((side + 1) // 2) ** 2, classes), name="weight")

    @tf.function
    def train(self, inputs, labels):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.nn.conv2d(tf.cast(inputs, tf.float32) / 255, self.kernel, 2, "SAME"))
            logits = tf.reshape(hidden, (tf.shape(inputs)[0], -1)) @ self.weight
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        weights = [self.kernel, self.weight]
        for weight, slope in zip(weights, tape.gradient(loss, weights)):
            weight.assign_sub(0.01 * slope)
        return loss
