//! Declarations of metrics: name, kind, unit, labels, meaning.

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Seconds, with fractions.
    Seconds,
    /// A count of this.
    Of(&'static str),
    /// 1 or 0: whether something is the case.
    Flag,
}

impl Unit {
    /// Returns the unit in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
            Self::Of(what) => what,
            Self::Flag => "0 or 1",
        }
    }
}

/// How a value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, and starts at 0 again with its process.
    Counter,
    /// The present value.
    Gauge,
    /// Counts of values, by upper bounds.
    Histogram,
}

impl Kind {
    /// Returns Prometheus' name of the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A label: it tells the series of a metric apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// The values that it has.
    pub meaning: &'static str,
}

/// A metric as it is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Its name in Prometheus.
    pub name: &'static str,
    /// How it changes.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// Its labels.
    pub labels: &'static [&'static Label],
    /// What it means.
    pub meaning: &'static str,
}

/// A whole number that grows; `N` labels.
#[derive(Clone, Copy, Debug)]
pub struct Counter<const N: usize>(pub(super) &'static Declared);
/// Seconds that grow.
#[derive(Clone, Copy, Debug)]
pub struct Seconds<const N: usize>(pub(super) &'static Declared);
/// A number that goes up and down.
#[derive(Clone, Copy, Debug)]
pub struct Gauge<const N: usize>(pub(super) &'static Declared);
/// Durations.
#[derive(Clone, Copy, Debug)]
pub struct Durations<const N: usize>(pub(super) &'static Declared);

/// Declares labels.
macro_rules! labels {
    ($($(#[doc = $meaning:literal])+ $id:ident = $name:literal;)+) => {
        $($(#[doc = $meaning])+
        pub const $id: &Label = &Label { name: $name, meaning: concat!($($meaning),+).trim_ascii() };)+
    };
}

/// Declares metrics: a constant for each, and the list of all. The documentation of a constant is
/// the help text that users read.
macro_rules! metrics {
    ($($(#[doc = $meaning:literal])+ $type:ident $id:ident = $name:literal, $unit:expr, [$($label:ident),*];)+) => {
        $($(#[doc = $meaning])+
        pub const $id: $type<{ <[&str]>::len(&[$(stringify!($label)),*]) }> = $type(&Declared {
            name: $name,
            kind: $type::<0>::KIND,
            unit: $unit,
            labels: &[$($label),*],
            meaning: concat!($($meaning),+).trim_ascii(),
        });)+

        /// All metrics, in the order in which they are declared.
        pub const ALL: &[&Declared] = &[$($id.0),+];
    };
}

pub(super) use {labels, metrics};

impl<const N: usize> Counter<N> {
    pub(super) const KIND: Kind = Kind::Counter;
}
impl<const N: usize> Seconds<N> {
    pub(super) const KIND: Kind = Kind::Counter;
}
impl<const N: usize> Gauge<N> {
    pub(super) const KIND: Kind = Kind::Gauge;
}
impl<const N: usize> Durations<N> {
    pub(super) const KIND: Kind = Kind::Histogram;
}
