//! Charts as SVG, written by hand: a few hundred lines of output need no library, and the file can
//! be shown anywhere, without scripts or fonts of another place.

use std::fmt::Write;

/// How values are spread along the x axis, and written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    Linear,
    /// Doublings, for numbers of nodes.
    Log2,
}

/// A line.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) colour: &'static str,
    /// Whether the line is computed and not measured.
    pub(crate) dashed: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A panel.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x_label: &'static str,
    pub(crate) y_label: String,
    pub(crate) x: Scale,
    /// Where the x axis has labels, and what they say.
    pub(crate) ticks: Vec<(f64, String)>,
    pub(crate) series: Vec<Series>,
}

/// Size of a panel.
pub(crate) const PANEL: (f64, f64) = (400.0, 300.0);
/// Space around the plot: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (62.0, 34.0, 24.0, 48.0);

/// Colours that people with any vision can tell apart (Okabe and Ito), the palest of them left out.
pub(crate) const COLOURS: [&str; 7] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A5195"];

impl Chart {
    /// Draws the panel with its corner at (`left`, `top`).
    pub(crate) fn svg(&self, left: f64, top: f64) -> String {
        let mut out = String::new();
        let (wide, high) = (PANEL.0 - MARGIN.0 - MARGIN.2, PANEL.1 - MARGIN.1 - MARGIN.3);
        let step = step(self.series.iter().flat_map(|s| &s.points).map(|p| p.1).fold(0.0, f64::max));
        let most = self.series.iter().flat_map(|s| &s.points).map(|p| p.1).fold(0.0, f64::max);
        let steps = (most / step - 1e-9).ceil().max(1.0);
        let (low, far) = self.range();
        let x = |v: f64| if far > low { (self.place(v) - low) / (far - low) * wide } else { wide / 2.0 };
        let y = |v: f64| high - v / (steps * step) * high;
        // Writing to a string does not fail.
        let _ = write!(out, r#"<g transform="translate({},{})">"#, left + MARGIN.0, top + MARGIN.1);
        let _ = write!(out, r#"<text class="t" x="0" y="-14">{}</text>"#, escaped(&self.title));
        for at in 0..=steps as u32 {
            let value = f64::from(at) * step;
            let _ = write!(out, r#"<line class="g" x2="{wide}" y1="{0:.1}" y2="{0:.1}"/>"#, y(value));
            let _ = write!(out, r#"<text class="y" x="-7" y="{:.1}">{}</text>"#, y(value) + 4.0, number(value, step));
        }
        for (value, label) in &self.ticks {
            let _ =
                write!(out, r#"<line class="a" x1="{0:.1}" x2="{0:.1}" y1="{high}" y2="{1}"/>"#, x(*value), high + 4.0);
            let _ =
                write!(out, r#"<text class="x" x="{:.1}" y="{}">{}</text>"#, x(*value), high + 17.0, escaped(label));
        }
        let _ = write!(out, r#"<line class="a" x2="{wide}" y1="{high}" y2="{high}"/>"#);
        let _ = write!(out, r#"<text class="x l" x="{}" y="{}">{}</text>"#, wide / 2.0, high + 36.0, self.x_label);
        let _ = write!(
            out,
            r#"<text class="x l" transform="translate(-48,{}) rotate(-90)">{}</text>"#,
            high / 2.0,
            escaped(&self.y_label)
        );
        // The first lines are the widest: their edges stay visible below the later ones.
        for (at, series) in self.series.iter().enumerate() {
            let below = self.series[at..].iter().filter(|s| !s.dashed).count().saturating_sub(1);
            out += &series.svg(&x, &y, if series.dashed { 2.0 } else { 2.0 + below as f64 * 0.9 });
        }
        out + "</g>\n"
    }

    fn place(&self, value: f64) -> f64 {
        if self.x == Scale::Log2 { value.log2() } else { value }
    }

    fn range(&self) -> (f64, f64) {
        let places = self.ticks.iter().map(|t| self.place(t.0));
        let (low, far) = places.fold((f64::MAX, f64::MIN), |(l, f), p| (l.min(p), f.max(p)));
        // The axis of shares begins at 0.
        if self.x == Scale::Linear { (0.0, far) } else { (low, far) }
    }
}

impl Series {
    fn svg(&self, x: &impl Fn(f64) -> f64, y: &impl Fn(f64) -> f64, wide: f64) -> String {
        let mut out = String::new();
        let points: Vec<String> = self.points.iter().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
        let dashes = if self.dashed { r#" stroke-dasharray="6 4""# } else { "" };
        let _ = write!(
            out,
            r#"<polyline class="s" style="stroke-width:{wide:.1}" stroke="{}"{dashes} points="{}"/>"#,
            self.colour,
            points.join(" ")
        );
        for (px, py) in self.points.iter().filter(|_| !self.dashed) {
            let _ = write!(
                out,
                r#"<circle cx="{:.1}" cy="{:.1}" r="{:.1}" fill="{}"/>"#,
                x(*px),
                y(*py),
                1.2 + wide,
                self.colour
            );
        }
        out
    }
}

/// Draws the names of lines beside their colours, in a row.
pub(crate) fn legend(series: &[Series], left: f64, top: f64) -> String {
    let mut out = String::new();
    let mut x = left;
    for s in series {
        let dashes = if s.dashed { r#" stroke-dasharray="6 4""# } else { "" };
        let (colour, end) = (s.colour, x + 26.0);
        let _ = write!(out, r#"<line class="s" stroke="{colour}"{dashes} x1="{x}" x2="{end}" y1="{top}" y2="{top}"/>"#);
        let _ = write!(out, r#"<text class="n" x="{}" y="{}">{}</text>"#, x + 32.0, top + 4.0, escaped(&s.name));
        x += 32.0 + s.name.chars().count() as f64 * 7.2 + 22.0;
    }
    out
}

/// Returns a round distance between grid lines such that there are about five lines up to `most`.
pub(crate) fn step(most: f64) -> f64 {
    if most <= 0.0 || !most.is_finite() {
        return 1.0;
    }
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|r| rough / power <= r + 1e-9).unwrap_or(10.0);
    round * power
}

/// Formats a value with as many digits as the distance between grid lines needs.
pub(crate) fn number(value: f64, step: f64) -> String {
    let digits = (0..6).find(|d| (step * 10f64.powi(*d)).fract().abs() < 1e-6).unwrap_or(6) as usize;
    format!("{value:.digits$}")
}

/// Escapes text for SVG or HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_lines_are_at_round_values() {
        assert_eq!([100.0, 140.9, 0.7, 0.0].map(step), [20.0, 50.0, 0.2, 1.0]);
        assert_eq!([number(1.5, 0.5), number(200.0, 50.0), number(0.0, 0.2)], ["1.5", "200", "0.0"]);
    }

    #[test]
    fn a_chart_holds_its_points_where_they_belong() {
        let series =
            Series { name: "a<b".into(), colour: COLOURS[0], dashed: false, points: vec![(1.0, 0.0), (8.0, 10.0)] };
        let chart = Chart {
            title: "t".into(),
            x_label: "nodes",
            y_label: "y".into(),
            x: Scale::Log2,
            ticks: vec![(1.0, "1".into()), (8.0, "8".into())],
            series: vec![series.clone()],
        };
        let svg = chart.svg(0.0, 0.0);
        assert!(svg.contains(r#"points="0.0,218.0 314.0,0.0""#), "{svg}");
        assert!(legend(&[series], 0.0, 0.0).contains("a&lt;b"));
    }
}
