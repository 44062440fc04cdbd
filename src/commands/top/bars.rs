//! Bars and graphs of characters, with or without colours.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

/// What a part of a bar stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Served by a copy, or taken by copies.
    Copy,
    /// Served after a wait, or promised to a copy.
    Wait,
    /// Served by the PFS.
    Pfs,
}

/// How characters are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Whether colours are used.
    pub(super) has_colour: bool,
    /// Whether characters beyond ASCII are used.
    pub(super) has_utf8: bool,
}

/// Heights of a graph.
const STEPS_UTF8: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const STEPS_ASCII: [char; 5] = ['_', '.', '-', '=', '#'];

impl Look {
    /// The look that the environment asks for, on a terminal.
    pub(super) fn of_terminal() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        Self { has_colour: !is_set("NO_COLOR"), has_utf8: is_utf8(|name| std::env::var(name).ok()) }
    }

    /// The look in a pipe or a file.
    pub(super) fn of_pipe() -> Self {
        Self { has_colour: false, ..Self::of_terminal() }
    }

    /// A style of text with this colour.
    pub(super) fn colour(self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }

    /// The style of headings and of what is less important.
    pub(super) const fn quiet() -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn part(self, part: Part) -> (char, Style) {
        let (utf8, ascii, colour) = match part {
            Part::Copy => ('█', '#', Color::Green),
            Part::Wait => ('▓', '=', Color::Yellow),
            Part::Pfs => ('▒', '-', Color::Red),
        };
        (if self.has_utf8 { utf8 } else { ascii }, self.colour(colour))
    }

    /// A sample of a part, for the legend.
    pub(super) fn sample(self, part: Part) -> Span<'static> {
        let (glyph, style) = self.part(part);
        Span::styled(glyph.to_string(), style)
    }

    /// A bar of `width` characters, filled by these shares of the whole. Each ends where the sum of
    /// shares up to it ends.
    pub(super) fn bar(self, width: usize, parts: &[(f64, Part)]) -> Vec<Span<'static>> {
        let (mut spans, mut sum, mut drawn) = (Vec::new(), 0.0, 0);
        for (share, part) in parts {
            sum += if share.is_finite() { share.max(0.0) } else { 0.0 };
            let end = ((sum * width as f64).round() as usize).min(width);
            let (glyph, style) = self.part(*part);
            spans.push(Span::styled(glyph.to_string().repeat(end.saturating_sub(drawn)), style));
            drawn = drawn.max(end);
        }
        let rest = if self.has_utf8 { "·" } else { "." };
        spans.push(Span::styled(rest.repeat(width - drawn), Self::quiet()));
        spans
    }

    /// A graph of the last `width` values, as high as the largest of them.
    pub(super) fn graph(self, width: usize, values: impl ExactSizeIterator<Item = f64>) -> String {
        let skipped = values.len().saturating_sub(width);
        let values: Vec<f64> = values.skip(skipped).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        let steps: &[char] = if self.has_utf8 { &STEPS_UTF8 } else { &STEPS_ASCII };
        let step = |value: &f64| {
            let height = if most > 0.0 { (value / most * (steps.len() - 1) as f64).ceil() as usize } else { 0 };
            steps.get(height).copied().unwrap_or(' ')
        };
        values.iter().map(step).collect()
    }
}

/// Whether the locale has UTF-8, by the variables that C programs ask in this order.
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set =
        ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
    set.is_some_and(|value| value.to_ascii_lowercase().replace('-', "").contains("utf8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UTF8: Look = Look { has_colour: true, has_utf8: true };
    const ASCII: Look = Look { has_colour: false, has_utf8: false };

    fn text(spans: &[Span<'_>]) -> String {
        spans.iter().map(|s| s.content.as_ref()).collect()
    }

    #[test]
    fn a_bar_has_its_width_whatever_the_shares_are() {
        let parts = |a, b| [(a, Part::Copy), (b, Part::Wait), (0.1, Part::Pfs)];
        assert_eq!(text(&ASCII.bar(10, &parts(0.5, 0.2))), "#####==-..");
        assert_eq!(text(&UTF8.bar(10, &parts(0.5, 0.2))), "█████▓▓▒··");
        for shares in [(9.0, 1.0), (f64::NAN, f64::INFINITY), (-1.0, 0.0), (0.0, 0.0)] {
            assert_eq!(text(&ASCII.bar(10, &parts(shares.0, shares.1))).len(), 10, "{shares:?}");
        }
        assert_eq!(text(&ASCII.bar(0, &parts(1.0, 1.0))), "");
    }

    #[test]
    fn parts_differ_without_colours_too() {
        assert!(ASCII.bar(10, &[(0.5, Part::Pfs)]).iter().all(|s| s.style.fg.is_none()));
        assert!(UTF8.bar(10, &[(0.5, Part::Pfs)]).iter().any(|s| s.style.fg == Some(Color::Red)));
        let samples = [Part::Copy, Part::Wait, Part::Pfs].map(|p| ASCII.sample(p).content.into_owned());
        assert_eq!(samples, ["#", "=", "-"]);
    }

    #[test]
    fn a_graph_has_the_last_values_and_its_top_is_the_largest() {
        assert_eq!(ASCII.graph(4, [9.0, 0.0, 1.0, 2.0, 4.0].into_iter()), "_.-#");
        assert_eq!(UTF8.graph(3, [0.0, 0.1, 8.0].into_iter()), "▁▂█");
        assert_eq!(ASCII.graph(3, [0.0, 0.0].into_iter()), "__");
        assert_eq!(ASCII.graph(3, std::iter::empty()), "");
    }

    #[test]
    fn the_locale_says_whether_there_is_utf8() {
        let of = |set: &'static [(&'static str, &'static str)]| {
            is_utf8(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
        };
        assert!(of(&[("LANG", "en_US.UTF-8")]) && of(&[("LC_ALL", "C.utf8"), ("LANG", "C")]));
        assert!(of(&[("LC_ALL", ""), ("LC_CTYPE", "C.UTF-8")]));
        assert!(!of(&[]) && !of(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")]) && !of(&[("LANG", "de_DE.ISO-8859-1")]));
    }
}
