//! Links the library without the C library: the namespace of audit libraries would load a second
//! one into every process.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for arg in ["-nostdlib", "-nostartfiles", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,--hash-style=gnu"] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
}
