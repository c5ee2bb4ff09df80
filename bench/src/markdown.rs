//! The report.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use flash_indexer_bench::{MeasureReport, Report, short};

use crate::goals::GOALS;
use crate::memory::MemoryReport;
use crate::prompt::PromptReport;
use crate::redis::{LONG_PROMPT_BLOCKS, PUBLISHED_ADD, PUBLISHED_LOOKUP, RedisReport};
use crate::results::{Results, SweepLine};
use crate::service::{BLOCK_TOKENS, CONNECTIONS, ENGINES, PROMPT_TOKENS, ServiceReport};

/// What must be known of the peers to judge figures of them.
const PEERS: &str = "\
* **kv-index ChainIndex** (`kv-index` 2.0.0): `ShardedChainIndex`, one shard for each 1,024 workers, asked through
  `score_into` with a kept buffer; its lanes are the threads that apply events.
* **dynamo compressed tree**, **dynamo positional** (`dynamo-kv-router` 1.6.1): in its own `ThreadPoolIndexer` with as
  many event threads as the measure says; events are timed until its queues are empty, queries run in the caller.
* **dynamo radix tree**: for one thread, behind a lock instead of its channel.
* **smg-radix-tree** (0.1.0): for one writer, behind a read-write lock, asked with kept scratch buffers.
* **two-level LRU, our re-implementation**: the default in-memory index of llm-d's KV-cache indexer as its
  documentation describes it, in Rust, with room for every pod of a block.

Events and queries are in each index's own types before anything is timed. An index without a query for the deepest few
answers for all and keeps the deepest. Answers are compared in every run; where they differ it says so.
";

const MADE_BY: &str = "\
Made by `bench/run`, do not edit. The parts are `bench/run measures --repeats N --contenders \"a;b\"`, `bench/run sweep`,
`bench/run density`, `bench/run memory`, `bench/run service`, `bench/run prompt`, `bench/run redis` and `bench/run report`. The designs
nested-map, actor and inverted were left out of the measures, to keep the run short; they are in the sweep. Medians of interleaved rounds:
";

/// Why goals are missed, as far as it is known.
const REASONS: &str = "\
Why, as far as it is known:

* **Ingest** is some 217 instructions for a stored block and its removal, all told: a hash, a slot found and filled, a name and a content
  written, and the same backwards. Where everything is in the processor's second cache (one worker of 2,048 blocks) that takes
  21 to 29 ns, and 25 to 43 with 64 workers, as the hour is. The difference is two lines of the directory a block, which come from
  memory in rows of 18 at once; huge pages would take a fifteenth off, and are not an index's to ask for.
* **One writer against two event threads of dynamo**: a fifth of its time would be 15 to 20 ns, less than the two lines and the hash take.
  The prototype that the floor is from took 27 to 36 ns, which is a third to a half of what dynamo takes on this machine.
  Two of our writers have indexes of their own, so what workers of both share is written twice.
* **Private hash seeds**: each worker's names are written for themselves, 20 bytes a block that a shared seed saves.
* **Queries**: the median is two misses: an edge and a run's header. The slowest hundredth are conversations of ten turns and
  more, each turn a run and a miss, and prompts of more than a thousand blocks.
* **Fan-out**: the ends of all holders are compared with the processor's widest vectors, and the depths of 7,000 no longer fit the first
  cache beside them: what is left is writing them. With 1,000 workers most of the time is the way there, as with 64: an edge and a header
  for each run, each from memory. So it is for the top 8, whose holders are collected in as many runs. ChainIndex takes
  4.2 to 7.2 us for 1,000 from hour to hour, the run index 0.53 to 0.76.
* **Memory**: about 33 bytes a distinct block, of which 8 are its local hash, 11 its name and the way from it to its run, and
  12 its directory slot at 55% load. With the trace spread over 7,000 workers a block has 1.5 holders: a tenth of ChainIndex's
  bytes would be less than a name, a slot and a local hash. What many hold costs two bytes and less for each of them.
* **Mixed replay**: most of its time is ingest. All ratios move by a tenth, and now and then by a quarter, from run to run with what the
  neighbours leave of the processor's caches.
* **Holes**: each one makes a rank an exception in its run, with a version change for readers when it opens and closes, and a gap that
  a removal has to pass: some 1,600 instructions, and there is one for fifty stored blocks. What follows a hole is computed and
  told once more, so blocks have second copies that must be counted. Without any hole the same events take about an eleventh of smg's time.
* **Clear** is out of sight at once and paid for later: eight runs with each of the events that follow.
";

/// Goals that are missed, and every figure for which an index with the same answers has a better one.
fn losses(text: &mut String, report: &Report) -> Result<()> {
    for goal in &GOALS {
        let cells = goal.cells(report);
        if cells.last().is_some_and(|measured| measured.contains("not reached")) {
            writeln!(text, "* {} against {}: {}, floor {}.", cells[0], cells[1], cells[4], cells[2])?;
        }
    }
    for measure in &report.measures {
        let Some(ours) = measure.rows.iter().find(|row| row.contender == report.baseline) else { continue };
        for (at, column) in measure.columns.iter().enumerate().filter(|(_, column)| !column.starts_with("M ")) {
            let better = measure.rows.iter().filter(|row| row.difference.is_none()).filter_map(|row| {
                let (theirs, ours) = (row.values[at]?, ours.values[at]?);
                (theirs < ours * NOISE).then(|| format!("{} {} against {}", row.contender, short(theirs), short(ours)))
            });
            let better: Vec<String> = better.collect();
            if !better.is_empty() {
                writeln!(text, "* {}, {column}: {}.", measure.measure, better.join("; "))?;
            }
        }
    }
    Ok(write!(text, "\n{REASONS}")?)
}

/// Figures closer than this are not told apart.
const NOISE: f64 = 0.97;

pub(crate) fn write(results: &Results, to: &Path) -> Result<()> {
    let Some(report) = results.report()? else {
        bail!("there are no measures yet: run bench/run measures first");
    };
    let mut text = format!("# Benchmarks\n\n{MADE_BY}\n");
    for (name, value) in &report.setting {
        writeln!(text, "* {name}: {value}")?;
    }
    text.push_str("\n## Goals\n\n");
    goals(&mut text, &report)?;
    text.push_str("\n## Where we lose\n\n");
    losses(&mut text, &report)?;
    text.push_str("\n## Who takes part\n\n");
    text.push_str(PEERS);
    writeln!(text, "\nIn brackets: times the figure of {}.", report.baseline)?;
    for measure in &report.measures {
        measure_table(&mut text, measure, &report.baseline)?;
    }
    let folder = results_folder(results, to);
    if let Some(lines) = results.sweep()? {
        sweep(&mut text, &lines, &folder)?;
    }
    if let Some(report) = results.memory()? {
        memory(&mut text, &report, &folder)?;
    }
    if let Some(report) = results.service()? {
        service(&mut text, &report)?;
    }
    if let Some(report) = results.prompt()? {
        prompt(&mut text, &report)?;
    }
    if let Some(report) = results.redis()? {
        redis(&mut text, &report)?;
    }
    if results.density_plot().is_file() {
        writeln!(text, "\n## Density of events\n\nBlocks stored (green) and removed (amber) over time.\n")?;
        writeln!(text, "![density of events]({folder}density.svg)")?;
    }
    std::fs::write(to, text).with_context(|| format!("failed to write {}", to.display()))
}

/// What a bound of memory costs, beside the plot.
fn memory(text: &mut String, report: &MemoryReport, folder: &str) -> Result<()> {
    let mebibytes = |bytes: usize| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    writeln!(
        text,
        "\n## Bounded memory\n\nHits that an index does not know of because it had to forget, in percentage points of the blocks asked\
         \nfor; the caches hit {:.2}%. Without a bound the run index takes {} MiB. The re-implementation has as many keys as fit at\
         \nwhat a block was measured to take in it.\n\n![hit rate lost to a bound of memory]({folder}memory.svg)\n",
        report.hit_percent,
        mebibytes(report.bytes_needed),
    )?;
    row(text, ["bound, MiB", "highest, MiB"].into_iter().chain(report.lines.iter().map(|line| line.name.as_str())))?;
    row(text, ["---:", "---:"].into_iter().chain(report.lines.iter().map(|_| "---:")))?;
    let Some(first) = report.lines.first() else { return Ok(()) };
    first.points.iter().enumerate().try_for_each(|(at, point)| {
        let highest = point.bytes_highest.map_or_else(String::new, mebibytes);
        let lost = report.lines.iter().map(|line| format!("{:.2}", line.points[at].lost_percent));
        row(text, [mebibytes(point.bytes_max), highest].into_iter().chain(lost))
    })
}

fn goals(text: &mut String, report: &Report) -> Result<()> {
    row(text, ["measure", "peer", "floor", "goal", "measured ratio"])?;
    row(text, ["---", "---", "---:", "---:", "---:"])?;
    GOALS.iter().try_for_each(|goal| row(text, goal.cells(report)))
}

fn measure_table(text: &mut String, measure: &MeasureReport, baseline: &str) -> Result<()> {
    writeln!(text, "\n## {}\n\n{}\n", measure.measure, measure.method)?;
    row(text, std::iter::once("index").chain(measure.columns.iter().map(String::as_str)))?;
    row(text, std::iter::once("---").chain(measure.columns.iter().map(|_| "---:")))?;
    measure.cells(baseline).into_iter().try_for_each(|cells| row(text, cells))?;
    let differences = measure.differences();
    if !differences.is_empty() {
        text.push('\n');
    }
    differences.iter().try_for_each(|line| Ok(writeln!(text, "* **{line}**")?))
}

/// Achieved throughput of each contender at its best, beside the plot.
fn sweep(text: &mut String, lines: &[SweepLine], folder: &str) -> Result<()> {
    text.push_str(
        "\n## Offered and achieved load\n\nThe same trace told in less and less time, one thread asking and one writing; block \
         operations are blocks stored, removed and asked for.\n\n",
    );
    writeln!(text, "![achieved against offered load]({folder}sweep.svg)\n")?;
    row(text, ["index", "M ops/s, most achieved"])?;
    row(text, ["---", "---:"])?;
    lines.iter().try_for_each(|line| {
        let most = line.points.iter().map(|point| point.achieved).fold(0.0, f64::max);
        row(text, [line.contender.clone(), short(most / 1e6)])
    })
}

/// The service over its sockets.
fn service(text: &mut String, report: &ServiceReport) -> Result<()> {
    writeln!(
        text,
        "\n## The whole service\n\n`bench/run service`: `flash-indexer serve` as a process of its own, with its defaults. {ENGINES}\
         \nengines publish batches that were encoded before, over ZeroMQ, as fast as they are taken in: at most 32 MiB ahead, and\
         \nafterwards no message was missed and the index holds exactly what was told. **Engines, client and service share the\
         \ncores**: sending is part of the figures. Blocks have {BLOCK_TOKENS} tokens; no two engines tell of the same.\n"
    )?;
    for (name, value) in &report.setting {
        writeln!(text, "* {name}: {value}")?;
    }
    text.push('\n');
    row(text, ["batches", "bytes an event", "M events/s", "M blocks/s"])?;
    row(text, ["---", "---:", "---:", "---:"])?;
    for line in &report.ingest {
        let figures = [line.bytes_per_event, line.events_per_second / 1e6, line.blocks_per_second / 1e6].map(short);
        row(text, std::iter::once(&line.shape).chain(&figures))?;
    }
    writeln!(
        text,
        "\n`POST /query` of {PROMPT_TOKENS} tokens over {CONNECTIONS} kept connections, one request at a time on each; most prompts are held whole.\
         \nWhere requests are offered at a rate, an answer is timed from when its request was due. Beside it, batches of 64\
         \nsingle-block events.\n"
    )?;
    row(text, ["requests/s offered", "beside, events/s", "requests/s answered", "p50 µs", "p99 µs"])?;
    row(text, ["---:", "---:", "---:", "---:", "---:"])?;
    report.queries.iter().try_for_each(|line| {
        let offered =
            line.offered_per_second.map_or("as many as are answered".to_owned(), |offered| format!("{offered:.0}"));
        let figures = [line.events_per_second, line.requests_per_second, line.p50_us, line.p99_us];
        row(text, std::iter::once(offered).chain(figures.map(|figure| format!("{figure:.0}"))))
    })?;
    Ok(write!(text, "\n{SERVICE_REASONS}")?)
}

/// The prompt side, each part a table.
fn prompt(text: &mut String, report: &PromptReport) -> Result<()> {
    text.push_str(
        "\n## From a chat to scored pods\n\n`bench/run prompt`, in one process. *Published* is what the authors of llm-d's indexer \
         have measured\non machines of theirs (Apple M1 and M3 Pro): it stands beside, and is no ratio.\n\n",
    );
    for (name, value) in &report.setting {
        writeln!(text, "* {name}: {value}")?;
    }
    for part in &report.parts {
        writeln!(text, "\n### {}\n\n{}\n", part.title, part.about)?;
        row(text, ["", "median µs", "published"])?;
        row(text, ["---", "---:", "---"])?;
        for line in &part.lines {
            row(text, [&line.what, &short(line.median_us), line.published.as_deref().unwrap_or("")])?;
        }
    }
    Ok(())
}

/// The index in Redis beside the one in memory.
fn redis(text: &mut String, report: &RedisReport) -> Result<()> {
    text.push_str(
        "\n## Shared through Redis\n\n`bench/run redis`: the trace's blocks, written by one replica into a Redis server of \
         its own on loopback, and asked of\nit, of the run index in memory and of the two-level LRU in turn; each answer is \
         compared. There is no HTTP around it. A\nquery of the store hashes the prompt's prefixes, is one call of a script, \
         and reads its answer.\n\n",
    );
    for (name, value) in &report.setting {
        writeln!(text, "* {name}: {value}")?;
    }
    text.push('\n');
    row(
        text,
        ["prompt", "ranks in the answer", "Redis p50 µs", "p99", "memory p50 µs", "p99", "two-level LRU p50 µs", "p99"],
    )?;
    row(text, ["---", "---:", "---:", "---:", "---:", "---:", "---:", "---:"])?;
    for line in &report.queries {
        let pairs = [line.store, line.memory, line.two_level].map(|pair| [pair.p50_us, pair.p99_us]);
        let figures = std::iter::once(line.holders).chain(pairs.into_iter().flatten()).map(short);
        row(text, std::iter::once(line.what.clone()).chain(figures))?;
    }
    text.push('\n');
    row(text, ["one replica writes", "changes", "changes/s"])?;
    row(text, ["---", "---:", "---:"])?;
    for line in &report.publishing {
        row(text, [line.what.clone(), line.rate.changes.to_string(), short(line.rate.changes_per_second)])?;
    }
    text.push('\n');
    row(text, ["memory", "bytes per distinct block", "per held block", "MiB"])?;
    row(text, ["---", "---:", "---:", "---:"])?;
    for line in &report.memory {
        let per = |blocks: u64| short(line.bytes as f64 / blocks.max(1) as f64);
        let mebibytes = short(line.bytes as f64 / f64::from(1 << 20));
        row(text, [line.what.clone(), per(line.distinct_blocks), per(line.held_blocks), mebibytes])?;
    }
    Ok(writeln!(
        text,
        "\n{LONG_PROMPT_BLOCKS} blocks that one rank stores with one event are written after {} ms (median). *Published* by the authors of \
         llm-d's\nindexer, of machines of theirs and so many keys: adding {PUBLISHED_ADD}; looking\nup, in memory, \
         {PUBLISHED_LOOKUP}. It stands beside, and is no ratio.\n\n{REDIS_REASONS}",
        short(report.long_prompt_us / 1e3)
    )?)
}

/// Where a query of the store spends its time, as far as it is known.
const REDIS_REASONS: &str = "\
A prompt that nobody holds costs the way there and back: 53 to 155 µs from run to run, as two threads of the replica and one
of Redis wake each other on the cores that they share. The rest grows with the ranks in the answer, and less with the prompt.";

/// Where the service's time goes, by its profile.
const SERVICE_REASONS: &str = "\
What stops it: the cores are full, and no single thing fills them.

* **Ingest** of single-block events: the two decoders take a third of the time (half of it the two passes over each
  payload, one to see that it is whole), the index's writer a quarter, ZeroMQ's threads and the copies out of it a
  sixth, sending the rest. Small batches cost more for what is done once a message: three frames sent, received and
  freed.
* **Queries**: 50 kB of JSON each. Reading the list of tokens is two fifths of the service's work, hashing and the index
  less than a tenth; the rest is spread over the network stack, HTTP and the answer.
* **At a rate** what is above the median is waiting. 10,000 requests a second are seven to nine tenths of what these cores answer
  at most, client included, and their 99th percentile went from 1 to 58 ms with that share from run to run. Half of that rate says more
  of the service.
";

/// The folder of results as seen from the report, with a slash behind it.
fn results_folder(results: &Results, to: &Path) -> String {
    let plot = results.sweep_plot();
    let folder = plot.parent().unwrap_or(Path::new(""));
    let near = to.parent().unwrap_or(Path::new(""));
    format!("{}/", folder.strip_prefix(near).unwrap_or(folder).display())
}

fn row<T: AsRef<str>>(text: &mut String, cells: impl IntoIterator<Item = T>) -> Result<()> {
    for cell in cells {
        write!(text, "| {} ", cell.as_ref())?;
    }
    Ok(writeln!(text, "|")?)
}
