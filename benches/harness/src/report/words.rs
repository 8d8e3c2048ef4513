//! Formats numbers for people: three digits, and the unit that keeps them short.

/// Three significant digits: `0.0123`, `1.23`, `12.3`, `1,230`.
pub(super) fn three(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() {
        return "–".to_owned();
    }
    // Rounded first: 9.996 has one digit before the point, but is printed with two.
    let rounded: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    let digits = rounded.abs().log10().floor();
    if digits < -4.0 {
        return scientific(value);
    }
    let places = (2.0 - digits).clamp(0.0, 6.0) as usize;
    thousands(&format!("{rounded:.places$}"))
}

/// Commas between the thousands of the whole part.
fn thousands(digits: &str) -> String {
    let (whole, rest) = digits.find('.').map_or((digits, ""), |point| digits.split_at(point));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut text = String::from(sign);
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

/// With a power of ten: `1.2 × 10⁻⁷`.
pub(super) fn scientific(value: f64) -> String {
    let text = format!("{value:.1e}");
    let Some((digits, power)) = text.split_once('e') else { return text };
    let raised: String = power
        .chars()
        .map(|letter| match letter {
            '-' => '⁻',
            '0' => '⁰',
            '1' => '¹',
            '2' => '²',
            '3' => '³',
            '4' => '⁴',
            '5' => '⁵',
            '6' => '⁶',
            '7' => '⁷',
            '8' => '⁸',
            _ => '⁹',
        })
        .collect();
    format!("{digits} × 10{raised}")
}

/// A number with a unit from a list in which each unit is `step` times the previous one.
fn unit(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut place = 0;
    // 999.6 would be printed as 1,000 of the smaller unit.
    while value.abs() >= step * 0.9995 && place + 1 < units.len() {
        value /= step;
        place += 1;
    }
    format!("{} {}", three(value), units[place])
}

/// A time that is given in nanoseconds.
pub(super) fn time(nanoseconds: f64) -> String {
    unit(nanoseconds, 1000.0, &["ns", "µs", "ms", "s"])
}

/// A size of memory.
pub(super) fn bytes(bytes: f64) -> String {
    if bytes.fract() == 0.0 && bytes < 1000.0 {
        return format!("{bytes} B");
    }
    unit(bytes, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// `1 case`, `2 cases`.
pub(super) fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{} {noun}s", thousands(&number.to_string())),
    }
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn list<S: AsRef<str>>(words: &[S]) -> String {
    match words {
        [] => String::new(),
        [only] => only.as_ref().to_owned(),
        [most @ .., last] => {
            let most: Vec<&str> = most.iter().map(AsRef::as_ref).collect();
            format!("{} and {}", most.join(", "), last.as_ref())
        }
    }
}

/// Adds a full stop at the end and a capital at the beginning.
pub(super) fn sentence(words: &str) -> String {
    let words = words.trim();
    let mut letters = words.chars();
    let Some(first) = letters.next() else { return String::new() };
    // Names such as `torch.compile` and paths keep their small letter.
    let named = words.split_whitespace().next().is_some_and(|word| {
        word.trim_end_matches(['.', ',', ':', ';']).contains(|letter: char| !letter.is_alphabetic())
    });
    let first = if named { first.to_string() } else { first.to_uppercase().to_string() };
    let stop = if words.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{stop}", letters.as_str())
}

/// At most this many letters, with `…` in place of the rest.
pub(super) fn short(words: &str, letters: usize) -> String {
    if words.chars().count() <= letters {
        return words.to_owned();
    }
    let kept: String = words.chars().take(letters.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// A length in a picture, with at most one decimal.
pub(super) fn px(length: f64) -> String {
    let text = format!("{length:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits() {
        let cases = [
            (0.0, "0"),
            (0.012345, "0.0123"),
            (0.9996, "1.00"),
            (9.996, "10.0"),
            (12.34, "12.3"),
            (999.6, "1,000"),
            (1_234_567.0, "1,230,000"),
            (-1.5, "-1.50"),
            (f64::NAN, "–"),
            (1.2e-7, "1.2 × 10⁻⁷"),
        ];
        for (value, text) in cases {
            assert_eq!(three(value), text);
        }
    }

    #[test]
    fn units() {
        assert_eq!(time(12.0), "12.0 ns");
        assert_eq!(time(999_600.0), "1.00 ms");
        assert_eq!(time(61_000_000_000.0), "61.0 s");
        assert_eq!(bytes(1536.0), "1.50 KiB");
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(4.0), "4 B");
        assert_eq!(count(1, "case"), "1 case");
        assert_eq!(count(1200, "step"), "1,200 steps");
    }

    #[test]
    fn words() {
        assert_eq!(list(&["a", "b", "c"]), "a, b and c");
        assert_eq!(list::<&str>(&[]), "");
        assert_eq!(sentence("no module named torch"), "No module named torch.");
        assert_eq!(sentence("torch.compile is off."), "torch.compile is off.");
        assert_eq!(short("abcdef", 4), "abc…");
        assert_eq!(px(-0.01), "0");
        assert_eq!(px(1.25), "1.2");
    }
}
