//! The date and time of `strftime_now`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where `strftime_now` has the time from.
pub(in crate::chat) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A time in UTC.
struct Moment {
    year: i64,
    /// From 1.
    month: usize,
    day: i64,
    /// From 0.
    day_of_year: i64,
    /// From 0, Sunday.
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
    microsecond: u32,
    since_epoch_s: i64,
}

/// Python's `strftime` in the C locale, in UTC. Unknown directives stay as they are.
pub(super) fn strftime(format: &str, now: SystemTime) -> String {
    let moment = Moment::of(now);
    let mut text = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        let directive = &rest[at + 1..];
        let flag = directive.chars().next().filter(|flag| matches!(flag, '-' | '_' | '0' | '^'));
        let name = directive[usize::from(flag.is_some())..].chars().next();
        let Some(name) = name else {
            text.push_str(&rest[at..]);
            return text;
        };
        let length = 1 + usize::from(flag.is_some()) + name.len_utf8();
        match moment.directive(name) {
            Some(Part::Text(part)) if flag == Some('^') => text.push_str(&part.to_uppercase()),
            Some(Part::Text(part)) => text.push_str(&part),
            Some(Part::Number { value, width, pad }) => {
                let pad = match flag {
                    Some('-') => None,
                    Some('_') => Some(' '),
                    Some('0') => Some('0'),
                    _ => Some(pad),
                };
                let digits = value.to_string();
                if let Some(pad) = pad {
                    text.extend(std::iter::repeat_n(pad, width.saturating_sub(digits.len())));
                }
                text.push_str(&digits);
            }
            None => text.push_str(&rest[at..at + length]),
        }
        rest = &rest[at + length..];
    }
    text.push_str(rest);
    text
}

enum Part {
    Text(String),
    Number { value: i64, width: usize, pad: char },
}

fn number(value: i64, width: usize) -> Option<Part> {
    Some(Part::Number { value, width, pad: '0' })
}

fn words(text: impl Into<String>) -> Option<Part> {
    Some(Part::Text(text.into()))
}

impl Moment {
    fn of(now: SystemTime) -> Self {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let since_epoch_s = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        let (days, seconds) = (since_epoch_s / 86_400, since_epoch_s % 86_400);
        // Civil date from days, in years that begin in March.
        let shifted = days + 719_468;
        let era = shifted / 146_097;
        let day_of_era = shifted % 146_097;
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_march_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_march_year + 2) / 153;
        let day = day_of_march_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month as usize - 1];
        Self {
            year,
            month: month as usize,
            day,
            day_of_year: before + day - 1 + i64::from(is_leap && month > 2),
            weekday: ((days + 4) % 7) as usize,
            hour: seconds / 3_600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            microsecond: since.subsec_micros(),
            since_epoch_s,
        }
    }

    fn hour_of_twelve(&self) -> i64 {
        (self.hour + 11) % 12 + 1
    }

    fn directive(&self, name: char) -> Option<Part> {
        let monday_first = (self.weekday + 6) % 7;
        match name {
            'Y' => number(self.year, 1),
            'C' => number(self.year / 100, 2),
            'y' => number(self.year % 100, 2),
            'm' => number(self.month as i64, 2),
            'd' => number(self.day, 2),
            'e' => Some(Part::Number { value: self.day, width: 2, pad: ' ' }),
            'H' => number(self.hour, 2),
            'k' => Some(Part::Number { value: self.hour, width: 2, pad: ' ' }),
            'I' => number(self.hour_of_twelve(), 2),
            'l' => Some(Part::Number { value: self.hour_of_twelve(), width: 2, pad: ' ' }),
            'M' => number(self.minute, 2),
            'S' => number(self.second, 2),
            'f' => number(i64::from(self.microsecond), 6),
            'j' => number(self.day_of_year + 1, 3),
            'u' => number(monday_first as i64 + 1, 1),
            'w' => number(self.weekday as i64, 1),
            'U' => number((self.day_of_year + 7 - self.weekday as i64) / 7, 2),
            'W' => number((self.day_of_year + 7 - monday_first as i64) / 7, 2),
            's' => number(self.since_epoch_s, 1),
            'a' => words(&DAYS[self.weekday][..3]),
            'A' => words(DAYS[self.weekday]),
            'b' | 'h' => words(&MONTHS[self.month - 1][..3]),
            'B' => words(MONTHS[self.month - 1]),
            'p' => words(if self.hour < 12 { "AM" } else { "PM" }),
            'P' => words(if self.hour < 12 { "am" } else { "pm" }),
            // A time without a zone has neither name nor offset in Python.
            'z' | 'Z' => words(""),
            'n' => words("\n"),
            't' => words("\t"),
            '%' => words("%"),
            'c' => self.composed("%a %b %e %H:%M:%S %Y"),
            'D' | 'x' => self.composed("%m/%d/%y"),
            'F' => self.composed("%Y-%m-%d"),
            'R' => self.composed("%H:%M"),
            'T' | 'X' => self.composed("%H:%M:%S"),
            'r' => self.composed("%I:%M:%S %p"),
            _ => None,
        }
    }

    fn composed(&self, format: &str) -> Option<Part> {
        let mut text = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            // Writing to a string cannot fail.
            let _ = match self.directive(chars.next()?)? {
                Part::Text(part) => write!(text, "{part}"),
                Part::Number { value, width, pad: ' ' } => write!(text, "{value:>width$}"),
                Part::Number { value, width, .. } => write!(text, "{value:0>width$}"),
            };
        }
        words(text)
    }
}
