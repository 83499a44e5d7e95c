//! In: numbers; out: texts with three to four significant digits and a unit that fits. Knows nothing else.

/// What stands where a figure is unavailable.
pub const NONE: &str = "–";

/// Three significant digits, without an exponent.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 || v == 0.0 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The largest unit of which there is at least one.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (value, 0);
    // 999.6 would be shown as 1000
    while value.abs() >= step * 0.9995 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    format!("{} {}", digits(value), units[unit])
}

/// `1.23 µs`, from nanoseconds.
pub fn time(ns: f64) -> String {
    scaled(ns, 1e3, &["ns", "µs", "ms", "s"])
}

/// [`time`], or [`NONE`].
pub fn maybe_time(ns: Option<f64>) -> String {
    ns.map_or(NONE.into(), time)
}

/// With `~` in front of what is a part of a time that several dispatches took together.
pub fn part(text: String, part: bool) -> String {
    if part && text != NONE { format!("~{text}") } else { text }
}

/// `12.3 MiB`.
pub fn bytes(bytes: f64) -> String {
    scaled(bytes, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// `45.6 GFLOP/s`.
pub fn flops_rate(flops: f64) -> String {
    scaled(flops, 1e3, &["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"])
}

/// `45.6 GB/s`.
pub fn bytes_rate(bytes: f64) -> String {
    scaled(bytes, 1e3, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

/// `45.6 MFLOP`.
pub fn flops(flops: f64) -> String {
    scaled(flops, 1e3, &["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"])
}

/// `12.3 %` of a share of 1.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A rate in a unit that its column names: three digits, and small ones as such.
pub fn rate_in(rate: f64, unit: f64) -> String {
    match rate / unit {
        0.0 => "0".into(),
        r if r < 0.01 => "<0.01".into(),
        r => digits(r),
    }
}

/// With what the fonts have in place of what they lack.
pub fn drawable(text: &str) -> String {
    text.replace('ᵀ', "^T")
}

/// `1 dispatch`, `3 dispatches`.
pub fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// The end of a name that says something alone: its last part, with the one before it where that is a number.
pub fn short(name: &str) -> &str {
    let mut parts = name.rmatch_indices('.').map(|(at, _)| &name[at + 1..]);
    let says = |part: &&str| !part.starts_with(|c: char| c.is_ascii_digit());
    parts.find(says).unwrap_or(name)
}

/// `1.31×`.
pub fn factor(factor: f64) -> String {
    format!("{}×", digits(factor))
}

/// `+1.23 µs`, from nanoseconds.
pub fn difference(ns: f64) -> String {
    match ns {
        0.0 => "0 ns".into(),
        ns if ns > 0.0 => format!("+{}", time(ns)),
        ns => format!("−{}", time(-ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit_and_digits_are_few() {
        assert_eq!(time(0.0), "0 ns");
        assert_eq!(time(12.34), "12.3 ns");
        assert_eq!(time(999.7), "1.00 µs");
        assert_eq!(time(1_234.0), "1.23 µs");
        assert_eq!(time(123_456.0), "123 µs");
        assert_eq!(time(99_960.0), "100 µs");
        assert_eq!(time(3.6e12), "3600 s");
        assert_eq!(maybe_time(None), "–");
        assert_eq!((part(time(1.0), true), part(time(1.0), false)), ("~1.00 ns".into(), "1.00 ns".into()));
        assert_eq!(part(maybe_time(None), true), "–");
        assert_eq!(bytes(3.7 * 1024.0 * 1024.0), "3.70 MiB");
        assert_eq!(bytes(1023.9), "1.00 KiB");
        assert_eq!(flops_rate(4.56e10), "45.6 GFLOP/s");
        assert_eq!(bytes_rate(1.5e12), "1.50 TB/s");
        assert_eq!(flops(2e6), "2.00 MFLOP");
        assert_eq!(percent(0.1234), "12.3 %");
        assert_eq!((count(1, "run", "runs"), count(2, "run", "runs")), ("1 run".into(), "2 runs".into()));
        assert_eq!(
            (rate_in(2.5e9, 1e9), rate_in(1e6, 1e9), rate_in(0.0, 1e9)),
            ("2.50".into(), "<0.01".into(), "0".into())
        );
        assert_eq!(drawable("a · bᵀ"), "a · b^T");
        assert_eq!(short("blocks.0.ffwd.net.0"), "net.0");
        assert_eq!(short("blocks.0.sa"), "sa");
        assert_eq!((short("blocks.0"), short("head")), ("blocks.0", "head"));
        assert_eq!(factor(1.306), "1.31×");
        assert_eq!(difference(-1_500.0), "−1.50 µs");
        assert_eq!(difference(1_500.0), "+1.50 µs");
    }
}
