# The few commands of this repository. `just` lists them; CONTRIBUTING.md says when to use which.
# (https://just.systems; each recipe is an ordinary command that can be typed as well.)

[private]
default:
    @just --list --unsorted

# The command line, the shim and slowfs, in target/release
build:
    cargo build --release --workspace

# One minute: unit tests
quick:
    cargo nextest run --workspace --lib --bins

# One family of end-to-end tests, such as `just e2e locks`
e2e family: build
    cargo nextest run -p monarch --test e2e -E 'test(/^{{ family }}::/)'

# Fifteen minutes: all tests
test: build
    cargo nextest run --workspace

# Everything: installs what is missing, gates, an older glibc, all tests
all:
    ./test

# What users install, into dist/: wheel, tarball, .deb, .rpm
release:
    ./release

# The gates: format, clippy, rustdoc
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --all-features -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet

# Format the code
fmt:
    cargo fmt --all

# The documentation of the library, in a browser
doc:
    cargo doc -p monarch-core --no-deps --open

# Write the files that are made of the code: the schema of settings, the tables of metrics
generate:
    UPDATE_SCHEMA=1 cargo test --workspace --lib schema
    UPDATE_METRICS=1 cargo test -p monarch-core --lib metrics
