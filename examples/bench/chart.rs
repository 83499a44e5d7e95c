//! In: a table; out: an SVG file a model, throughput and memory of each program side by side. Knows nothing of files' names.

use crate::cell::{Class, Program, Weights};
use crate::markdown::number;
use crate::sizes::{Model, Phase, Scale};
use crate::table::{CLASSES, Row, Table, fastest, latest};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

/// A program in a variant.
#[derive(Debug, PartialEq)]
struct Bar {
    label: String,
    program: Program,
    samples_per_s: f64,
    mib: Option<f64>,
}

const WIDTH: i32 = 1040;
/// Where labels end and bars begin, unless a label is longer.
const LABELS: i32 = 290;
/// About how wide a letter of a label is.
const LETTER: i32 = 7;
/// Room beside a bar for its number.
const NUMBERS: i32 = 74;
const BAR: i32 = 18;
const STEP: i32 = 26;
const HEAD: i32 = 66;
const GROUP_HEAD: i32 = 48;

const INK: RGBColor = RGBColor(33, 37, 41);
const FAINT: RGBColor = RGBColor(108, 117, 125);
const LINE: RGBColor = RGBColor(206, 212, 218);

fn colour(program: Program) -> RGBColor {
    match program {
        Program::Pytorch => RGBColor(134, 142, 150),
        Program::Kiln => RGBColor(217, 95, 20),
        Program::Burn => RGBColor(95, 130, 165),
        Program::Meganeura => RGBColor(120, 150, 110),
    }
}

/// The bars of a phase, whose rows were measured: PyTorch as written and its best, kiln's modes, the others; of narrower
/// precisions the best alone.
fn bars(rows: &[&Row], runs: usize) -> Vec<Bar> {
    let mut chosen: Vec<&Row> = Vec::new();
    for program in [Program::Pytorch, Program::Kiln, Program::Burn, Program::Meganeura] {
        for (class, _) in CLASSES {
            let of = || rows.iter().copied().filter(|r| r.cell.program == program && r.cell.class() == class);
            let best = fastest(of()).map(|(row, _)| row);
            let all = program == Program::Kiln && class == Class::F32;
            let shown = of().filter(|r| {
                let first = program == Program::Pytorch && class == Class::F32 && r.cell.variant == "eager";
                all || first || best.is_some_and(|b| std::ptr::eq(*r, b))
            });
            chosen.extend(shown);
        }
    }
    let bar = |row: &Row| {
        let cell = &row.cell;
        let program = match cell.program {
            Program::Pytorch => "PyTorch".to_owned(),
            other => other.to_string(),
        };
        let label = match cell.class() {
            Class::F32 => format!("{program} {}", cell.variant),
            _ => format!("{program} {}, {}", cell.variant, cell.precision),
        };
        let label = if runs > 1 { format!("{label} ({})", row.measurement.run) } else { label };
        Some(Bar { label, program: cell.program, samples_per_s: row.samples_per_s?, mib: row.measured()?.peak_mib })
    };
    chosen.into_iter().filter_map(bar).collect()
}

/// Draws a model; false, and no file, if none of its cells was measured.
pub fn draw(path: &Path, table: &Table, model: Model) -> Result<bool, String> {
    let of_model = latest(&table.rows.iter().filter(|r| r.cell.model == model).collect::<Vec<_>>());
    let has = |weights| of_model.iter().any(|r| r.cell.weights == weights);
    let weights = if has(Weights::He) { Weights::He } else { Weights::Default };
    let runs: BTreeSet<&str> = of_model.iter().map(|r| r.measurement.run.as_str()).collect();
    let of_phase = |phase| -> Vec<Bar> {
        let rows = of_model.iter().copied().filter(|r| r.cell.weights == weights && r.cell.phase == phase);
        bars(&rows.collect::<Vec<_>>(), runs.len())
    };
    let phases = [("Inference", of_phase(Phase::Infer)), ("Training", of_phase(Phase::Train))];
    let phases: Vec<_> = phases.into_iter().filter(|(_, bars)| !bars.is_empty()).collect();
    if phases.is_empty() {
        return Ok(false);
    }
    let height = HEAD + phases.iter().map(|(_, b)| GROUP_HEAD + STEP * b.len() as i32).sum::<i32>() + 20;
    let scaled = of_model.iter().any(|r| r.cell.scale == Scale::Small);
    let title = format!("{model}{} on {}", if scaled { ", scaled down," } else { "" }, table.adapter);
    let letters = phases.iter().flat_map(|(_, bars)| bars).map(|b| b.label.chars().count()).max().unwrap_or(0);
    let labels = LABELS.max(LETTER * letters as i32 + 30);
    let width = WIDTH + labels - LABELS;
    let root = SVGBackend::new(path, (width as u32, height as u32)).into_drawing_area();
    paint(&root, [width, labels], &title, &phases).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(true)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn paint(
    root: &Area,
    [width, labels]: [i32; 2],
    title: &str,
    phases: &[(&str, Vec<Bar>)],
) -> Result<(), Box<dyn std::error::Error>> {
    root.fill(&WHITE)?;
    text(root, title, (20, 30), 21, INK, HPos::Left)?;
    text(root, "in f32 where nothing else is said", (width - 20, 32), 13, FAINT, HPos::Right)?;
    let mut y = HEAD;
    let column = (width - labels - 40) / 2;
    for (name, bars) in phases {
        text(root, name, (20, y + 14), 16, INK, HPos::Left)?;
        text(root, "samples/s, more is better", (labels, y + 15), 13, FAINT, HPos::Left)?;
        let second = labels + column + 20;
        text(root, "peak memory in MiB, less is better", (second, y + 15), 13, FAINT, HPos::Left)?;
        y += 34;
        let foot = y + STEP * bars.len() as i32 - (STEP - BAR) / 2;
        for x in [labels, second] {
            root.draw(&PathElement::new(vec![(x, y - 4), (x, foot)], LINE.stroke_width(1)))?;
        }
        let most = |of: Figure| bars.iter().filter_map(of).fold(f64::MIN_POSITIVE, f64::max);
        let columns: [(i32, Figure); 2] = [(labels, |b| Some(b.samples_per_s)), (second, |b| b.mib)];
        for (i, bar) in bars.iter().enumerate() {
            let top = y + STEP * i as i32;
            let middle = top + BAR / 2;
            text(root, &bar.label, (labels - 10, middle), 13, INK, HPos::Right)?;
            for (x, of) in columns {
                let Some(value) = of(bar) else {
                    text(root, "not measured", (x + 6, middle), 12, FAINT, HPos::Left)?;
                    continue;
                };
                let length = (f64::from(column - NUMBERS) * value / most(of)).round().max(1.0) as i32;
                let fill = colour(bar.program).filled();
                root.draw(&Rectangle::new([(x + 1, top), (x + 1 + length, top + BAR)], fill))?;
                text(root, grouped(value), (x + length + 7, middle), 13, INK, HPos::Left)?;
            }
        }
        y += STEP * bars.len() as i32 + GROUP_HEAD - 34;
    }
    root.present()?;
    Ok(())
}

/// What a bar's length shows.
type Figure = fn(&Bar) -> Option<f64>;

fn text(
    root: &Area,
    words: impl Display,
    at: (i32, i32),
    size: i32,
    colour: RGBColor,
    anchor: HPos,
) -> Result<(), Box<dyn std::error::Error>> {
    let style = ("sans-serif", size).into_font().color(&colour).pos(Pos::new(anchor, VPos::Center));
    root.draw(&Text::new(words.to_string(), at, style))?;
    Ok(())
}

/// Three digits, and thousands apart: `102,400`.
fn grouped(value: f64) -> String {
    if value < 1000.0 {
        return number(Some(value));
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Record;
    use crate::table::tables;
    use crate::tests::measurement;

    fn table() -> Table {
        let of = |id: &str, ms| Record::Cell(measurement(id, "one", ms));
        let records = [
            of("pytorch/wide/full/he/infer/eager/f32", 17.0),
            of("pytorch/wide/full/he/infer/compile/f32", 16.5),
            of("pytorch/wide/full/he/infer/graph/f32", 16.0),
            of("pytorch/wide/full/he/infer/graph/f16", 1.5),
            of("kiln/wide/full/he/infer/recorded/highest", 18.0),
            of("kiln/wide/full/he/infer/fused/highest", 15.0),
            of("kiln/wide/full/default/infer/fused/highest", 14.0),
        ];
        let [table] = tables(&records, false).unwrap().try_into().unwrap();
        table
    }

    #[test]
    fn a_chart_shows_the_first_and_the_best() {
        let table = table();
        let rows: Vec<&Row> = table.rows.iter().filter(|r| r.cell.weights == Weights::He).collect();
        let labels: Vec<String> = bars(&rows, 1).into_iter().map(|b| b.label).collect();
        let wanted = ["PyTorch eager", "PyTorch graph", "PyTorch graph, f16", "kiln recorded", "kiln fused"];
        assert_eq!(labels, wanted);
    }

    #[test]
    fn a_chart_is_drawn_where_there_are_cells() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chart.svg");
        assert!(!draw(&path, &table(), Model::Deep).unwrap());
        assert!(!path.exists());
        assert!(draw(&path, &table(), Model::Wide).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("kiln fused") && text.contains("136,533"), "{text}");
        assert!(!text.contains("not measured"));
    }
}
