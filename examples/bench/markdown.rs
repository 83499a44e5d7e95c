//! In: tables; out: a page of Markdown. Knows nothing of how they were measured.

use crate::cell::{Cell, Class, Outcome, Program};
use crate::line::Measured;
use crate::sizes::{Model, Phase, Scale, Sizes};
use crate::table::{CLASSES, Peak, Row, Table, fastest};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The page, with charts by their file names, and with the notes that someone wrote into the page before it.
pub fn page(
    title: &str,
    tables: &[Table],
    charts: &[(String, Model, String)],
    commands: &[String],
    notes: Option<&str>,
) -> String {
    let mut out = format!("# {title}\n\n");
    out.push_str(HEAD);
    for table in tables {
        adapter(&mut out, table, charts);
    }
    if tables.iter().any(|t| t.adapter != tables[0].adapter) {
        across(&mut out, tables);
    }
    if let Some(notes) = notes {
        let _ = write!(out, "\n{NOTES}\n\n{notes}\n");
    }
    out.push_str("\n## Commands\n\n```sh\n");
    for command in commands {
        let _ = writeln!(out, "{command}");
    }
    out.push_str("```\n");
    out
}

const NOTES: &str = "## Notes";

/// What stands under "Notes" in a page.
pub fn notes(page: &str) -> Option<String> {
    // line by line, since a checkout may have given them other ends
    let rest = page.lines().skip_while(|line| *line != NOTES).skip(1);
    let notes: Vec<&str> = rest.take_while(|line| !line.starts_with("## ")).collect();
    Some(notes.join("\n").trim().to_owned()).filter(|n| !n.is_empty())
}

const HEAD: &str = "\
Medians of runs that each wait for the one before, by the host's clock from the call that starts a run to its end, with the
time that 95 % of them keep, after others in flight that warm up, a third as many and at least 1 s of them; *in flight* is
per run of many that do not wait; *device* is by the device's clock (kiln: first kernel's begin to last one's end with
timestamps, PyTorch: CUDA events). All programs start from the same weights. A ratio is the median of the best PyTorch
variant of that cell in the same run by the cell's own: above 1 the cell is faster. The floor is the model's FLOPs at the
adapter's measured rate of f32 multiply-adds, or its weights at the measured rate of a copy, whichever is more; *roofline*
is the floor by the median. Inputs are random and take turns; they are where a run reads them on the device when its time
begins, but for tokens and classes, at most 16 KiB, which kiln uploads in the run; outputs stay on the device, but for a
step's loss, which kiln reads back. Memory is what kiln's plan says and PyTorch's `max_memory_allocated`. Precisions that
are compared with each other: `highest` and f32 with TF32 off; `high` and TF32; `medium`, f16 storage and PyTorch's f16
(inference with weights in f16, training by autocast). The first run's seconds begin with compilation, with empty caches if
nothing else is said; a later start of kiln has its own cache, and not the driver's.
";

fn adapter(out: &mut String, table: &Table, charts: &[(String, Model, String)]) {
    let _ = writeln!(out, "\n## {}\n", table.name);
    let _ = write!(out, "Driver {}", table.driver);
    if let Some(Peak { flops, bytes }) = table.peak {
        let _ = write!(out, "; measured peaks {}FLOP/s in f32 and {}B/s", si(flops), si(bytes));
    }
    let programs: BTreeSet<&str> = table.rows.iter().filter_map(|r| Some(r.measured()?.program.as_str())).collect();
    let _ =
        writeln!(out, "; {}. Runs: {}.", programs.into_iter().collect::<Vec<_>>().join(", "), table.runs.join(", "));
    summary(out, table);
    tuned(out, table);
    let mut seen = Vec::new();
    for row in &table.rows {
        let part = (row.cell.model, row.cell.phase);
        if seen.contains(&part) {
            continue;
        }
        if seen.last().is_none_or(|(model, _)| *model != part.0) {
            let _ = writeln!(out, "\n### {}\n\n{}", part.0, sizes(Sizes::of(part.0, row.cell.scale), row.cell.scale));
            for (_, _, file) in charts.iter().filter(|(a, m, _)| *a == table.name && *m == part.0) {
                let _ = writeln!(out, "\n![{}: throughput and memory]({file})", part.0);
            }
        }
        seen.push(part);
        detail(out, table, part);
    }
}

/// What a model's sizes are, in words.
fn sizes(s: Sizes, scale: Scale) -> String {
    let scaled = if scale == Scale::Small { ", scaled down for a CPU" } else { "" };
    match s.model {
        Model::Gptlite => format!(
            "{} layers of {}, {} heads, vocabulary {}, S = {}, batch 1{scaled}.",
            s.depth, s.width, s.heads, s.vocab, s.rows
        ),
        _ => format!("{} layers of {}, batch {}{scaled}.", s.depth, s.width, s.rows),
    }
}

/// The head of a column that says which run a row is of, where there are several.
fn run_head(table: &Table) -> &'static str {
    if table.runs.len() > 1 { " run |" } else { "" }
}

/// What stands in that column.
fn run_of(row: &Row, table: &Table) -> String {
    if table.runs.len() > 1 { format!(" {} |", row.measurement.run) } else { String::new() }
}

/// The best of each program, a line a model, phase, class and run that measured one.
fn summary(out: &mut String, table: &Table) {
    let programs: BTreeSet<Program> = table.rows.iter().map(|r| r.cell.program).collect();
    let others: Vec<Program> =
        [Program::Burn, Program::Meganeura].into_iter().filter(|p| programs.contains(p)).collect();
    let run = run_head(table);
    let _ = write!(out, "\nThe best of each, ms (variant):\n\n| model | | weights | precision |{run} floor | kiln |");
    if programs.contains(&Program::Pytorch) {
        out.push_str(" PyTorch | PyTorch / kiln |");
    }
    for other in &others {
        let _ = write!(out, " {other} | {other} / kiln |");
    }
    let columns = out.lines().last().map_or(0, |l| l.matches('|').count() - 1);
    let _ = writeln!(out, "\n|{}", " --- |".repeat(columns));
    let mut groups: Vec<(&Row, Vec<&Row>)> = Vec::new();
    for row in table.rows.iter().filter(|row| row.measured().is_some()) {
        // a machine is not the same every day
        let same = |first: &Row| first.cell.compares(&row.cell) && first.measurement.run == row.measurement.run;
        match groups.iter_mut().find(|(first, _)| same(first)) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((row, vec![row])),
        }
    }
    groups.sort_by_key(|(first, _)| {
        let alike = table.rows.iter().position(|r| r.cell.compares(&first.cell));
        (alike, table.runs.iter().position(|run| *run == first.measurement.run))
    });
    for (first, rows) in groups {
        let cell = &first.cell;
        let of = |program| fastest(rows.iter().copied().filter(|r| r.cell.program == program));
        let class = CLASSES.iter().find(|(c, _)| *c == cell.class()).map_or("", |(_, name)| name);
        let floor = (cell.class() == Class::F32).then_some(first.floor_ms).flatten();
        let kiln = of(Program::Kiln);
        let run = run_of(first, table);
        let _ =
            write!(out, "| {} | {} | {} | {class} |{run} {} |", cell.model, cell.phase, cell.weights, number(floor));
        let best = |found: Option<(&Row, &Measured)>| {
            found.map_or("–".into(), |(r, m)| format!("{} ({})", number(Some(m.ms)), r.cell.variant))
        };
        let _ = write!(out, " {} |", best(kiln));
        let with_pytorch = programs.contains(&Program::Pytorch).then_some(Program::Pytorch);
        for program in with_pytorch.into_iter().chain(others.iter().copied()) {
            let other = of(program);
            let ratio = kiln.zip(other).map(|((_, k), (_, o))| o.ms / k.ms);
            let _ = write!(out, " {} | {} |", best(other), number(ratio));
        }
        out.push('\n');
    }
}

/// What tuning gains: kiln fused by its models of kernels' times beside fused by measured ones, of the same run.
fn tuned(out: &mut String, table: &Table) {
    let of = |mode: &'static str| {
        let cells = table.rows.iter().filter(move |r| r.cell.program == Program::Kiln && r.cell.variant == mode);
        cells.filter_map(|r| Some((r, r.measured()?.ms)))
    };
    let mut lines = String::new();
    for (row, default) in of("fused") {
        let same = |other: &Row| {
            row.cell == Cell { variant: row.cell.variant.clone(), ..other.cell.clone() }
                && row.measurement.run == other.measurement.run
        };
        let Some((_, tuned)) = of("tuned").find(|(other, _)| same(other)) else { continue };
        let Cell { model, phase, weights, precision, .. } = &row.cell;
        let (ratio, default, tuned) = (number(Some(default / tuned)), number(Some(default)), number(Some(tuned)));
        let run = run_of(row, table);
        let _ = writeln!(lines, "| {model} | {phase} | {weights} | {precision} |{run} {default} | {tuned} | {ratio} |");
    }
    if !lines.is_empty() {
        let head = format!("| model | | weights | precision |{} fused | tuned | fused / tuned |", run_head(table));
        let columns = head.matches('|').count() - 1;
        let _ = write!(out, "\nWhat tuning gains, ms:\n\n{head}\n|{}\n{lines}", " --- |".repeat(columns));
    }
}

fn detail(out: &mut String, table: &Table, (model, phase): (Model, Phase)) {
    let what = if phase == Phase::Infer { "Inference" } else { "Training" };
    let _ = writeln!(out, "\n{what}, {model}:\n");
    let runs = table.runs.len() > 1;
    let _ = writeln!(
        out,
        "| weights | precision | program | variant |{} ms (95 %) | in flight | device | samples/s | FLOP/s | roofline | \
         MiB | submits | dispatches | first run s (later start) | best PyTorch / this |",
        run_head(table)
    );
    let _ = writeln!(out, "|{}", " --- |".repeat(15 + usize::from(runs)));
    for row in table.rows.iter().filter(|r| (r.cell.model, r.cell.phase) == (model, phase)) {
        let c = &row.cell;
        let run = run_of(row, table);
        let _ = write!(out, "| {} | {} | {} | {} |{run}", c.weights, c.precision, c.program, c.variant);
        let m = match &row.measurement.outcome {
            Outcome::Measured(m) => m,
            Outcome::NotWithin { seconds, what } => {
                let _ = writeln!(out, " {what} not within {seconds} s |{}", " |".repeat(10));
                continue;
            }
            Outcome::Failed(why) => {
                let why = why.replace('|', "/").replace('\n', " ");
                let _ = writeln!(out, " failed: {} |{}", last(&why, 160), " |".repeat(10));
                continue;
            }
        };
        let ratio =
            row.pytorch.as_ref().map_or(String::new(), |b| format!("{} ({})", number(Some(b.ratio)), b.variant));
        let percent = row.roofline.map_or(String::new(), |r| format!("{:.0} %", 100.0 * r));
        let whole = |n: Option<u64>| n.map_or(String::new(), |n| n.to_string());
        let _ = writeln!(
            out,
            " {} ({}) | {} | {} | {} | {} | {percent} | {} | {} | {} | {} | {ratio} |",
            number(Some(m.ms)),
            number(Some(m.p95_ms)),
            number(m.in_flight_ms),
            number(m.device_ms),
            number(row.samples_per_s),
            row.tflops.map_or(String::new(), |t| si(t * 1e12)),
            m.peak_mib.map_or(String::new(), |mib| format!("{mib:.0}")),
            whole(m.submits),
            whole(m.dispatches),
            later_start(m),
        );
        if let Some(note) = &m.note {
            let _ = writeln!(out, "| | | | |{} {note} |{}", if runs { " |" } else { "" }, " |".repeat(10));
        }
    }
}

/// kiln's cells on each adapter.
fn across(out: &mut String, tables: &[Table]) {
    out.push_str(
        "\n## Across adapters\n\nkiln's medians in ms, and their share of each adapter's roofline:\n\n| cell |",
    );
    for table in tables {
        let _ = write!(out, " {} |", table.name);
    }
    let _ = writeln!(out, "\n|{}", " --- |".repeat(tables.len() + 1));
    let rows = tables.iter().flat_map(|t| &t.rows).filter(|r| r.cell.program == Program::Kiln);
    let ids: BTreeSet<&str> = rows.map(|r| r.measurement.id.as_str()).collect();
    for id in ids {
        let _ = write!(out, "| {} |", id.trim_start_matches("kiln/"));
        for table in tables {
            // the last run's that measured it
            let row = table.rows.iter().rfind(|r| r.measurement.id == id && r.measured().is_some());
            let shown = row.and_then(|r| Some((number(Some(r.measured()?.ms)), r.roofline)));
            let text = match shown {
                None => "–".into(),
                Some((ms, None)) => ms,
                Some((ms, Some(share))) => format!("{ms} ({:.0} %)", 100.0 * share),
            };
            let _ = write!(out, " {text} |");
        }
        out.push('\n');
    }
}

/// Three digits, or none.
pub fn number(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(v) if v.abs() >= 99.95 => format!("{v:.0}"),
        Some(v) if v.abs() >= 9.995 => format!("{v:.1}"),
        Some(v) if v.abs() >= 0.9995 => format!("{v:.2}"),
        Some(v) => format!("{v:.3}"),
    }
}

/// Seconds until the first run's end, and at a later start.
fn later_start(m: &Measured) -> String {
    let again = m.second_start_s.map_or(String::new(), |s| format!(" ({})", number(Some(s))));
    number(Some(m.first_run_s)) + &again
}

/// With a prefix of the SI: `60.1 T`.
fn si(value: f64) -> String {
    let prefixes = [(1e12, "T"), (1e9, "G"), (1e6, "M")];
    let (unit, prefix) = prefixes.into_iter().find(|(unit, _)| value >= *unit).unwrap_or((1.0, ""));
    format!("{} {prefix}", number(Some(value / unit)))
}

/// The end of a text, which is where an error stands.
fn last(text: &str, most: usize) -> String {
    let skip = text.chars().count().saturating_sub(most);
    let cut = if skip > 0 { "…" } else { "" };
    format!("{cut}{}", text.chars().skip(skip).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Measurement, Record};
    use crate::table::tables;
    use crate::tests::measurement;

    #[test]
    fn numbers_have_three_digits() {
        let shown: Vec<String> =
            [0.12345, 0.9999, 1.2345, 9.999, 12.345, 99.99, 1234.5].map(|v| number(Some(v))).to_vec();
        assert_eq!(shown, ["0.123", "1.00", "1.23", "10.0", "12.3", "100", "1234"]);
        assert_eq!(number(None), "");
        assert_eq!(si(60.14e12), "60.1 T");
        assert_eq!(si(0.5), "0.500 ");
    }

    #[test]
    fn two_runs_make_one_page() {
        let late = |id: &str, run: &str| {
            let outcome = Outcome::NotWithin { seconds: 120, what: "first run".into() };
            Record::Cell(Measurement { outcome, ..measurement(id, run, 0.0) })
        };
        let of = |id: &str, run: &str, ms| Record::Cell(measurement(id, run, ms));
        let records = [
            of("pytorch/wide/full/he/infer/graph/f32", "one", 16.0),
            of("kiln/wide/full/he/infer/recorded/highest", "one", 40.0),
            of("kiln/wide/full/he/infer/fused/highest", "one", 32.0),
            late("pytorch/wide/full/he/infer/max-autotune/f32", "one"),
            of("meganeura/wide/full/he/infer/session/f32", "two", 64.0),
            of("pytorch/wide/full/he/infer/eager/f32", "two", 17.0),
            late("pytorch/wide/full/he/infer/max-autotune/f32", "three"),
        ];
        let page = page("Title", &tables(&records, false).unwrap(), &[], &["cargo xtask bench".into()], None);
        for line in [
            "Driver driver; program 1. Runs: one, two, three.",
            "| wide | infer | he | f32 | one |  | 32.0 (fused) | 16.0 (graph) | 0.500 | – |  |",
            "| wide | infer | he | f32 | two |  | – | 17.0 (eager) |  | 64.0 (session) |  |",
            "| he | highest | kiln | fused | one | 32.0 (33.0) | 32.0 |  | 64000 | 25.8 T |  | 10 | 1 | 3 | 0.500 (0.250) | 0.500 (graph) |",
            "| he | f32 | pytorch | max-autotune | one | first run not within 120 s | | | | | | | | | | |",
            "| he | f32 | pytorch | max-autotune | three | first run not within 120 s | | | | | | | | | | |",
        ] {
            assert!(page.lines().any(|l| l == line), "{line}\n\n{page}");
        }
        assert!(!page.contains("| f32 | three |"), "a run without a time has no best\n\n{page}");
        // also where the later run has the variant that comes first
        let of_run = |run| page.find(&format!("| wide | infer | he | f32 | {run} |"));
        assert!(of_run("one") < of_run("two"), "runs follow each other in the order of their records\n\n{page}");
    }

    #[test]
    fn notes_stay_when_a_page_is_made_anew() {
        let records = [Record::Cell(measurement("kiln/wide/full/he/infer/fused/highest", "one", 32.0))];
        let with = |notes| page("Title", &tables(&records, false).unwrap(), &[], &["cargo xtask bench".into()], notes);
        assert_eq!(notes(&with(None)), None);
        let written = "- The host was busy.\n- `## Notes` of two\n  lines.";
        let page = with(Some(written));
        for page in [page.clone(), page.replace('\n', "\r\n")] {
            assert_eq!(notes(&page).as_deref(), Some(written));
        }
        assert_eq!(with(notes(&page).as_deref()), page);
        assert!(page.ends_with("\n## Commands\n\n```sh\ncargo xtask bench\n```\n"), "{page}");
        // at the end, where one adds them to a page that has none
        assert_eq!(notes("# Title\n\n## Notes\n\nThe host was busy.\n"), Some("The host was busy.".into()));
    }

    #[test]
    fn fused_stands_beside_tuned_of_the_same_run() {
        let of = |id: &str, run: &str, ms| Record::Cell(measurement(id, run, ms));
        let records = [
            of("kiln/wide/full/he/infer/fused/highest", "one", 22.0),
            of("kiln/wide/full/he/infer/tuned/highest", "one", 20.0),
            of("kiln/wide/full/he/train/fused/highest", "one", 60.0),
            of("kiln/wide/full/he/train/tuned/highest", "two", 50.0),
            of("kiln/deep/full/he/infer/fused/high", "one", 9.0),
        ];
        let page = page("Title", &tables(&records, false).unwrap(), &[], &[], None);
        let lines: Vec<&str> = page.lines().skip_while(|l| !l.starts_with("What tuning")).skip(4).collect();
        assert_eq!(lines[0], "| wide | infer | he | highest | one | 22.0 | 20.0 | 1.10 |", "{page}");
        assert_eq!(lines[1], "", "{page}");
    }

    #[test]
    fn adapters_stand_side_by_side() {
        let id = "kiln/deep/full/he/infer/fused/highest";
        let on = |adapter: &str, run, ms| Measurement { adapter: adapter.into(), ..measurement(id, run, ms) };
        let failed = Measurement { outcome: Outcome::Failed("no memory".into()), ..on("slow", "two", 0.0) };
        let records = [on("fast", "one", 2.0), on("slow", "one", 4.0), failed].map(Record::Cell);
        let page = page("Title", &tables(&records, false).unwrap(), &[], &[], None);
        assert!(page.contains("| cell | fast | slow |"), "{page}");
        // where peaks were not measured, and a later run failed
        assert!(page.contains("| deep/full/he/infer/fused/highest | 2.00 | 4.00 |"), "{page}");
    }
}
