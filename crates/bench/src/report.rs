//! Results of a run.

use serde::{Deserialize, Serialize};

use crate::backend::MatchTotals;

/// Every measure of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Machine and options of the run, as name and value.
    pub setting: Vec<(String, String)>,
    /// The contender that others are compared with.
    pub baseline: String,
    /// The measures, in the order in which they were taken.
    pub measures: Vec<MeasureReport>,
}

/// One measure of every contender.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MeasureReport {
    /// Its name.
    pub measure: String,
    /// Description of the measure, with the number of rounds.
    pub method: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The contenders.
    pub rows: Vec<Row>,
}

/// One measure of one contender.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub contender: String,
    /// Median of each column; none if the contender does not support the measure.
    pub values: Vec<Option<f64>>,
    /// Difference of its answers from the baseline's; then its figures cannot be compared.
    pub difference: Option<Difference>,
}

/// Two answers to the same queries.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Difference {
    /// This contender's matches.
    pub found: MatchTotals,
    /// The baseline's matches.
    pub expected: MatchTotals,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { found, expected } = self;
        write!(
            f,
            "answers differ: {} workers and {} blocks where the baseline finds {} and {}",
            found.workers, found.blocks, expected.workers, expected.blocks
        )
    }
}

impl Report {
    /// The median in one column of one contender.
    #[must_use]
    pub fn value(&self, measure: &str, column: &str, contender: &str) -> Option<f64> {
        let measure = self.measures.iter().find(|taken| taken.measure == measure)?;
        let column = measure.columns.iter().position(|name| name == column)?;
        *measure.rows.iter().find(|row| row.contender == contender)?.values.get(column)?
    }
}

impl MeasureReport {
    /// The table's cells: a row for each contender, with its name first, and each value followed by its ratio to
    /// `baseline`'s.
    #[must_use]
    pub fn cells(&self, baseline: &str) -> Vec<Vec<String>> {
        let reference = self.rows.iter().find(|row| row.contender == baseline);
        let cell = |row: &Row, column: usize| match row.values[column] {
            None => "-".to_owned(),
            Some(value) => match reference.and_then(|reference| reference.values[column]) {
                Some(of) if of > 0.0 && row.contender != baseline => {
                    format!("{} ({}x)", short(value), short(value / of))
                }
                _ => short(value),
            },
        };
        let cells = |row: &Row| {
            let values = (0..self.columns.len()).map(|column| cell(row, column));
            std::iter::once(row.contender.clone()).chain(values).collect()
        };
        self.rows.iter().map(cells).collect()
    }

    /// Notes below the table: one line for each contender with different answers.
    #[must_use]
    pub fn differences(&self) -> Vec<String> {
        let differing = self.rows.iter().filter_map(|row| Some((row, row.difference?)));
        differing.map(|(row, difference)| format!("{}: {difference}", row.contender)).collect()
    }
}

/// A figure with two or three significant digits.
#[must_use]
pub fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        size => {
            let zeros = -size.log10().floor();
            format!("{value:.digits$}", digits = zeros as usize + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn figures_have_two_or_three_digits() {
        let shown = [0.0, 1234.5, 99.96, 12.34, 1.0, 0.125, 0.07, 0.001_23].map(short);
        assert_eq!(shown, ["0", "1234", "100.0", "12.3", "1.00", "0.12", "0.070", "0.0012"]);
    }
}
