//! Python's `datetime.strftime` for a time in UTC, on `jiff`.

use std::sync::Arc;
use std::time::SystemTime;

use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// Source of the current time for `strftime_now`.
pub(crate) type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Directives that `jiff` formats as Python does in the C locale, with any flag.
const SHARED_DIRECTIVES: &str = "AaBbCcDdeFGgHhIjklMmnPpRrSsTtUuVWwXxYy%";

/// The day of a time in UTC, such as `2026-11-23`.
#[must_use]
pub fn utc_date(time: SystemTime) -> String {
    strftime("%Y-%m-%d", time)
}

/// Formats a time. An unknown directive is copied to the output.
///
/// Times before 1970 or after 9999-12-30T22:00:00Z, `jiff`'s maximum, are clamped.
pub(super) fn strftime(format: &str, now: SystemTime) -> String {
    let beyond = if now < SystemTime::UNIX_EPOCH { Timestamp::UNIX_EPOCH } else { Timestamp::MAX };
    let now = Timestamp::try_from(now).unwrap_or(beyond).max(Timestamp::UNIX_EPOCH);
    let now = BrokenDownTime::from(&Zoned::new(now, TimeZone::UTC));
    let c_locale = Config::new().custom(PosixCustom::new());
    now.to_string_with_config(&c_locale, jiff_format(format)).expect("`jiff_format` leaves known directives only")
}

/// The `jiff` format whose output equals that of a Python format.
fn jiff_format(format: &str) -> String {
    let mut rewritten = String::with_capacity(format.len());
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        rewritten.push_str(&rest[..at]);
        let directive = &rest[at + 1..];
        let flag = directive.chars().next().filter(|flag| matches!(flag, '-' | '_' | '0' | '^'));
        let flag_bytes = usize::from(flag.is_some());
        let name = directive[flag_bytes..].chars().next();
        let end = at + 1 + flag_bytes + name.map_or(0, char::len_utf8);
        match name {
            // Python prints six digits; `jiff` prints only as many as the fraction has.
            Some('f') if flag.is_none() => rewritten.push_str("%6f"),
            // `datetime.now()` has no time zone: Python prints neither an offset nor a name.
            Some('z' | 'Z') => {}
            Some(name) if SHARED_DIRECTIVES.contains(name) => rewritten.push_str(&rest[at..end]),
            _ => rewritten.push_str(&rest[at..end].replace('%', "%%")),
        }
        rest = &rest[end..];
    }
    rewritten.push_str(rest);
    rewritten
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// 2027-01-03 04:05:06.000789 UTC: a Sunday in the last ISO week of 2026.
    fn sunday() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::new(1_798_949_106, 789_000)
    }

    /// The expected texts are the output of CPython 3.11 on glibc.
    #[test]
    fn directives_print_as_in_python() {
        for (format, expected) in [
            ("%a %A %b %B %c", "Sun Sunday Jan January Sun Jan  3 04:05:06 2027"),
            ("%C %d %D %e %F %f", "20 03 01/03/27  3 2027-01-03 000789"),
            ("%G-W%V-%u %g", "2026-W53-7 26"),
            ("%h %H %I %j %k %l %m %M", "Jan 04 04 003  4  4 01 05"),
            ("%p %P %r %R %s %S %T", "AM am 04:05:06 AM 04:05 1798949106 06 04:05:06"),
            ("%U %w %W %x %X %y %Y", "01 0 00 01/03/27 04:05:06 27 2027"),
            ("[%z][%Z][%-z][%%][%n][%t]", "[][][][%][\n][\t]"),
            ("%-d %_d %0e %^a %^c %-I", "3  3 03 SUN SUN JAN  3 04:05:06 2027 4"),
            ("%Q %-Q %é %", "%Q %-Q %é %"),
            ("100%", "100%"),
        ] {
            assert_eq!(strftime(format, sunday()), expected, "{format}");
        }
    }

    #[test]
    fn times_beyond_the_calendar_are_clamped() {
        let (before, after) = (Duration::from_secs(1), Duration::from_secs(1 << 50));
        assert_eq!(strftime("%F %T", SystemTime::UNIX_EPOCH - before), "1970-01-01 00:00:00");
        assert_eq!(strftime("%Y", SystemTime::UNIX_EPOCH + after), "9999");
    }
}
