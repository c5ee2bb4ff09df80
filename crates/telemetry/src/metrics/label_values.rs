//! Values of labels, with their meanings.

/// A value of a label, with its meaning.
pub type LabelValue = (&'static str, &'static str);

/// All values of a label of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelValues {
    /// Name of the metric's samples, without the prefix of the service.
    pub metric: String,
    /// The label.
    pub label: &'static str,
    /// The values.
    pub values: Vec<LabelValue>,
}

impl LabelValues {
    /// The values of a label of a metric.
    #[must_use]
    pub fn of(metric: impl Into<String>, label: &'static str, values: &[LabelValue]) -> Self {
        Self { metric: metric.into(), label, values: values.to_vec() }
    }
}
