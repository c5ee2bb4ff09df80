//! Performance goals of this project, compared with measurements.

use flash_indexer_bench::{Report, short};
use flash_indexer_designs::Design;

use crate::peers::{CHAIN_INDEX, DYNAMO_COMPRESSED, SMG_RADIX_TREE};

/// A goal for the ratio of one of our figures to a peer's.
pub(crate) struct Goal {
    pub(crate) name: &'static str,
    ours: Figure,
    /// The peer's figure; none if our figure is a ratio already.
    theirs: Option<(&'static str, Figure)>,
    /// The ratio that must be reached.
    floor: f64,
    /// The ratio to aim for.
    goal: f64,
    better: Better,
}

/// A column of a measure.
#[derive(Clone, Copy)]
struct Figure {
    measure: &'static str,
    column: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Lower,
    Higher,
}

const fn figure(measure: &'static str, column: &'static str) -> Figure {
    Figure { measure, column }
}

/// A goal for a figure that should be low.
const fn less(name: &'static str, ours: Figure, peer: &'static str, theirs: Figure, floor: f64, goal: f64) -> Goal {
    Goal { name, ours, theirs: Some((peer, theirs)), floor, goal, better: Better::Lower }
}

const INGEST: Figure = figure("ingest", "ns/stored block");
const INGEST_2: Figure = figure("ingest-2", "ns/stored block");
const QUERY_P50: Figure = figure("query", "p50 ns");
const QUERY_P99: Figure = figure("query", "p99 ns");
const FULL_1000: Figure = figure("fan-out-1000", "full mean ns");
const TOP_1000: Figure = figure("fan-out-1000", "top-8 mean ns");
const FULL_7000: Figure = figure("fan-out-7000", "full mean ns");
const TOP_7000: Figure = figure("fan-out-7000", "top-8 mean ns");
const HELD: Figure = figure("memory", "B/held block");
const HELD_7000: Figure = figure("memory-7000", "B/held block");
const HELD_SAME: Figure = figure("memory-7000-same", "B/held block");
const MIXED: Figure = figure("mixed", "M ops/s, better");
const PRIVATE: Figure = figure("private-seeds", "ns/stored block");
const HOLES: Figure = figure("holes", "ns/stored block");
const HOLES_P99: Figure = figure("holes", "query p99 ns");
const AGENTIC: Figure = figure("agentic", "ns/stored block");
const AGENTIC_P50: Figure = figure("agentic", "query p50 ns");
const DOCUMENTS_P50: Figure = figure("documents", "query p50 ns");
const CLEAR: Figure = figure("clear", "us/worker");

/// Every goal.
pub(crate) const GOALS: [Goal; 21] = [
    less("ingest per stored block", INGEST, CHAIN_INDEX, INGEST, 0.46, 0.25),
    less(
        "ingest per stored block, one writer against two event threads",
        INGEST,
        DYNAMO_COMPRESSED,
        INGEST_2,
        0.2,
        0.125,
    ),
    less("query p50", QUERY_P50, CHAIN_INDEX, QUERY_P50, 0.65, 0.5),
    less("query p99", QUERY_P99, CHAIN_INDEX, QUERY_P99, 0.65, 0.5),
    Goal {
        name: "query p99 under a writer against quiet",
        ours: figure("query-under-writer", "p99 / own quiet p99"),
        theirs: None,
        floor: 1.3,
        goal: 1.1,
        better: Better::Lower,
    },
    less("1,000 workers, full answer", FULL_1000, CHAIN_INDEX, FULL_1000, 0.10, 0.07),
    less("1,000 workers, top 8", TOP_1000, CHAIN_INDEX, TOP_1000, 0.10, 0.07),
    less("7,000 workers, full answer", FULL_7000, CHAIN_INDEX, FULL_7000, 0.06, 0.02),
    less("7,000 workers, top 8", TOP_7000, CHAIN_INDEX, TOP_7000, 0.05, 0.01),
    less("memory per held block, 64 workers", HELD, CHAIN_INDEX, HELD, 1.0 / 3.0, 0.25),
    less("memory per held block, 7,000 workers", HELD_7000, CHAIN_INDEX, HELD_7000, 0.1, 1.0 / 12.0),
    less(
        "memory per held block, 7,000 workers with the same prompts",
        HELD_SAME,
        CHAIN_INDEX,
        HELD_SAME,
        0.1,
        1.0 / 12.0,
    ),
    Goal {
        name: "mixed replay, operations per second",
        ours: MIXED,
        theirs: Some((DYNAMO_COMPRESSED, MIXED)),
        floor: 2.4,
        goal: 5.0,
        better: Better::Higher,
    },
    Goal {
        name: "mixed replay, operations per second",
        ours: MIXED,
        theirs: Some((CHAIN_INDEX, MIXED)),
        floor: 2.0,
        goal: 3.0,
        better: Better::Higher,
    },
    less("private hash seeds, ingest per stored block", PRIVATE, CHAIN_INDEX, PRIVATE, 0.75, 0.6),
    less("2% holes, ingest per stored block", HOLES, SMG_RADIX_TREE, HOLES, 0.1, 0.05),
    less("2% holes, query p99", HOLES_P99, SMG_RADIX_TREE, HOLES_P99, 0.4, 0.25),
    less("agents' sessions, query p50", AGENTIC_P50, CHAIN_INDEX, AGENTIC_P50, 0.76, 0.5),
    less("agents' sessions, ingest per stored block", AGENTIC, CHAIN_INDEX, AGENTIC, 0.6, 0.35),
    less("documents, query p50", DOCUMENTS_P50, CHAIN_INDEX, DOCUMENTS_P50, 1.0, 0.6),
    less("clear of one of 1,000 workers", CLEAR, DYNAMO_COMPRESSED, CLEAR, 0.01, 0.001),
];

impl Goal {
    /// Cells of the table of goals: measure, its figure, peer, floor, goal, and the measured ratio with the result.
    pub(crate) fn cells(&self, report: &Report) -> [String; 6] {
        let ratio = |value| format!("{}x", short(value));
        let measured = self
            .measured(report)
            .map_or_else(|| "not measured".to_owned(), |value| format!("{} ({})", ratio(value), self.reached(value)));
        let peer = self.theirs.map_or("itself", |(peer, _)| peer);
        let (measure, name) = (self.ours.measure.to_owned(), self.name.to_owned());
        [measure, name, peer.to_owned(), ratio(self.floor), ratio(self.goal), measured]
    }

    fn measured(&self, report: &Report) -> Option<f64> {
        let ours = report.value(self.ours.measure, self.ours.column, Design::DEFAULT.as_str())?;
        match self.theirs {
            None => Some(ours),
            Some((peer, figure)) => Some(ours / report.value(figure.measure, figure.column, peer)?),
        }
    }

    fn reached(&self, ratio: f64) -> &'static str {
        let reaches = |wanted: f64| match self.better {
            Better::Lower => ratio <= wanted,
            Better::Higher => ratio >= wanted,
        };
        if reaches(self.goal) {
            "goal"
        } else if reaches(self.floor) {
            "floor"
        } else {
            "not reached"
        }
    }
}
