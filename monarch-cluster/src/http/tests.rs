//! Servers and clients against each other and against doubles, over real sockets.

mod attacks;
mod encryption;
mod files;
mod limits;
mod patience;
mod refusing;
mod serving;
mod support;
