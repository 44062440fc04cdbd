//! What the declaration of a metric is.

/// What a number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Seconds, with fractions.
    Seconds,
    /// Things of this kind.
    Of(&'static str),
    /// 1 where something is so, 0 where it is not.
    Flag,
}

impl Unit {
    /// In words.
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

/// How a number behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until what counts it begins anew.
    Counter,
    /// It is what it is now.
    Gauge,
    /// How many values were at most so large.
    Histogram,
}

impl Kind {
    /// As Prometheus calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// What tells the series of a metric apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// What its values are.
    pub meaning: &'static str,
}

/// A metric as it is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Its name in Prometheus.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// What it counts or measures.
    pub unit: Unit,
    /// What tells its series apart.
    pub labels: &'static [&'static Label],
    /// What it says.
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

/// Declares metrics: a constant for each, and the list of all. What it says in its documentation is
/// what users read.
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
