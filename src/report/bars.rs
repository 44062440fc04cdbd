//! Bar charts as SVG: stacked bars side by side, and a bar that shows a share.

use crate::chart::{escaped, number, step};
use std::fmt::Write;

/// Space around the plot: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 50.0, 12.0, 44.0);
/// Size of a drawing of stacked bars.
const SIZE: (f64, f64) = (470.0, 280.0);
/// Most labels below a drawing.
const MAX_LABELS: usize = 20;

/// A part of each bar.
pub(super) struct Part<'a> {
    pub(super) name: &'a str,
    pub(super) colour: &'a str,
    /// By bar.
    pub(super) values: Vec<f64>,
}

/// Draws bars side by side, each with a label, of parts on top of each other.
pub(super) fn stacked(title: &str, x_label: &str, y_label: &str, labels: &[String], parts: &[Part<'_>]) -> String {
    let (wide, high) = (SIZE.0 - MARGIN.0 - MARGIN.2, SIZE.1 - MARGIN.1 - MARGIN.3);
    let value = |part: &Part<'_>, bar: usize| part.values.get(bar).copied().unwrap_or(0.0);
    let most = (0..labels.len()).map(|bar| parts.iter().map(|p| value(p, bar)).sum()).fold(0.0, f64::max);
    let distance = step(most);
    let steps = (most / distance - 1e-9).ceil().max(1.0);
    let scale = high / (steps * distance);
    let room = wide / labels.len().max(1) as f64;
    let every = labels.len().div_ceil(MAX_LABELS).max(1);
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}"><g transform="translate({3},{4})">"#,
        SIZE.0,
        SIZE.1,
        escaped(title),
        MARGIN.0,
        MARGIN.1
    );
    // Writing to a string does not fail.
    let _ = write!(out, r#"<text class="t" x="{}" y="-34">{}</text>"#, -MARGIN.0 + 4.0, escaped(title));
    let mut x = -MARGIN.0 + 4.0;
    for part in parts.iter().filter(|_| parts.len() > 1) {
        let _ = write!(out, r#"<rect x="{x:.1}" y="-26" width="10" height="10" fill="{}"/>"#, part.colour);
        let _ = write!(out, r#"<text x="{:.1}" y="-17">{}</text>"#, x + 14.0, escaped(part.name));
        x += 14.0 + part.name.chars().count() as f64 * 6.6 + 16.0;
    }
    for at in 0..=steps as u32 {
        let v = f64::from(at) * distance;
        let y = high - v * scale;
        let _ = write!(out, r#"<line class="g" x2="{wide}" y1="{y:.1}" y2="{y:.1}"/>"#);
        let _ = write!(out, r#"<text class="y" x="-6" y="{:.1}">{}</text>"#, y + 4.0, number(v, distance));
    }
    for (bar, label) in labels.iter().enumerate() {
        let (left, thick) = (room * (bar as f64 + 0.14), (room * 0.72).min(60.0));
        let left = left + (room * 0.72 - thick) / 2.0;
        let mut y = high;
        for part in parts {
            let tall = value(part, bar) * scale;
            y = (y - tall).max(0.0);
            if tall > 0.0 {
                let _ = write!(
                    out,
                    r#"<rect x="{left:.1}" y="{y:.1}" width="{thick:.1}" height="{tall:.1}" fill="{}"><title>{}: {} {}</title></rect>"#,
                    part.colour,
                    escaped(label),
                    escaped(part.name),
                    number(value(part, bar), distance / 10.0)
                );
            }
        }
        if bar % every == 0 {
            let middle = left + thick / 2.0;
            let _ = write!(out, r#"<text class="x" x="{middle:.1}" y="{}">{}</text>"#, high + 15.0, escaped(label));
        }
    }
    let _ = write!(out, r#"<line class="a" x2="{wide}" y1="{high}" y2="{high}"/>"#);
    let _ = write!(out, r#"<text class="x l" x="{}" y="{}">{}</text>"#, wide / 2.0, high + 34.0, escaped(x_label));
    let _ = write!(
        out,
        r#"<text class="x l" transform="translate(-50,{}) rotate(-90)">{}</text>"#,
        high / 2.0,
        escaped(y_label)
    );
    out + "</g></svg>"
}

/// Draws a share as a bar that is filled up to it.
pub(super) fn filled(share: f64, colour: &str) -> String {
    let wide = 220.0;
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="12"><rect width="{wide}" height="12" class="e"/><rect width="{:.1}" height="12" fill="{colour}"/></svg>"##,
        wide * share.clamp(0.0, 1.0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stand_on_each_other_and_many_have_fewer_labels() {
        let part = |name, values: &[f64]| Part { name, colour: "#000", values: values.to_vec() };
        let labels: Vec<String> = (1..=50).map(|n| n.to_string()).collect();
        let svg = stacked("t", "x", "y", &labels, &[part("a", &[40.0, 0.0]), part("b<c", &[60.0])]);
        // 186 high: 40 of 100, and 60 on top of it.
        assert!(
            svg.contains(r#"y="111.6" width="5.7" height="74.4""#)
                && svg.contains(r#"y="0.0" width="5.7" height="111.6""#),
            "{svg}"
        );
        assert!(svg.contains("b&lt;c") && svg.contains(">4</text>") && !svg.contains(">5</text>"), "{svg}");
        assert_eq!(svg.matches("<title>").count(), 2);
        assert!(filled(2.0, "#000").contains(r##"width="220.0" height="12" fill="#000""##));
    }
}
