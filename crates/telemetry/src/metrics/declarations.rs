//! Declarations of metrics: each has its name, its help and the values of its labels in one place.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::histogram::Histogram;
use super::{LabelValue, LabelValues};

/// Registered metrics, and the values of their labels.
#[derive(Debug)]
pub(super) struct Declarations {
    pub(super) registry: Registry,
    pub(super) label_values: Vec<LabelValues>,
}

impl Declarations {
    pub(super) fn new(prefix: &str) -> Self {
        Self { registry: Registry::with_prefix(prefix), label_values: Vec::new() }
    }

    /// Registers a metric and returns a handle to it.
    pub(super) fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.registry.register(name, help, metric.clone());
        metric
    }

    /// [`Declarations::add`] for a metric with a unit.
    pub(super) fn add_with_unit<M: Metric + Clone>(&mut self, name: &str, help: &str, unit: Unit, metric: M) -> M {
        self.registry.register_with_unit(name, help, unit, metric.clone());
        metric
    }

    /// Declares a histogram of seconds.
    pub(super) fn durations(&mut self, name: &str, help: &str, bounds: &'static [f64]) -> Histogram {
        self.add_with_unit(name, help, Unit::Seconds, Histogram::new(bounds))
    }

    pub(super) fn counter(&mut self, name: &str, help: &str) -> Counter {
        self.add(name, help, Counter::default())
    }

    /// Declares the values of a label of a metric, by the name of its samples.
    pub(super) fn describe(&mut self, metric: impl Into<String>, label: &'static str, values: &[LabelValue]) {
        self.label_values.push(LabelValues::of(metric, label, values));
    }

    /// Declares a counter for each value of a label: counting needs neither a lookup nor a lock, and every series is exported
    /// from the start.
    pub(super) fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: &'static [LabelValue; N],
    ) -> [Counter; N] {
        let NamedCounters { family, .. } = self.counters_on_demand(name, help, label, values);
        values.map(|value| family.get_or_create_owned(&[(label, value.0)]))
    }

    /// [`Declarations::counters`] of values that callers pass by name.
    pub(super) fn named_counters(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: &'static [LabelValue],
    ) -> NamedCounters {
        let counters = self.counters_on_demand(name, help, label, values);
        // Exported at zero: the first increment is visible as a rise.
        values.iter().for_each(|value| drop(counters.family.get_or_create(&[(label, value.0)])));
        counters
    }

    /// [`Declarations::named_counters`] that are exported once they have counted something.
    pub(super) fn counters_on_demand(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: &'static [LabelValue],
    ) -> NamedCounters {
        self.describe(format!("{name}_total"), label, values);
        NamedCounters { family: self.add(name, help, Family::default()), label, values }
    }
}

/// Counters by the values of one label.
#[derive(Debug)]
pub(super) struct NamedCounters {
    family: Family<[(&'static str, &'static str); 1], Counter>,
    label: &'static str,
    values: &'static [LabelValue],
}

impl NamedCounters {
    /// Counts one more of a value.
    pub(super) fn inc(&self, value: &'static str) {
        debug_assert!(is_declared(self.values, value), "add {value} to the values of the label {}", self.label);
        self.family.get_or_create(&[(self.label, value)]).inc();
    }
}

/// Whether a table has a value.
pub(super) fn is_declared(values: &[LabelValue], value: &str) -> bool {
    values.iter().any(|(known, _)| *known == value)
}
