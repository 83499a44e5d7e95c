//! Time to load a trace of 100,000 spans, to find what of it is in view, and to lay a frame of the window out, by what
//! is shown: at most 2 s and 4 ms are wanted. As many nodes and tensors as dispatches go with it. Needs no GPU.

use criterion::{Criterion, criterion_group, criterion_main};
use egui_kittest::Harness;
use egui_tiles::Tile;
use kiln::trace::Trace;
use kiln_viewer::app::{Viewer, style};
use kiln_viewer::files::NoFiles;
use kiln_viewer::live::panel::Live;
use kiln_viewer::model::document::Document;
use kiln_viewer::model::selection::Selection;
use kiln_viewer::model::timeline::{Timeline, visible};
use kiln_viewer::panels::Panel;
use kiln_viewer::sample;
use std::hint::black_box;

fn layout(c: &mut Criterion) {
    for (dispatches, frames) in [(100_000, 1), (1_000, 100)] {
        let trace = sample::large(dispatches, frames);
        let text = trace.to_json();
        let mut group = c.benchmark_group(format!("viewer/{dispatches}x{frames}"));
        group.sample_size(10);
        group.bench_function("load", |b| {
            b.iter(|| {
                let trace = Trace::from_json(text.as_bytes()).expect("it was written by us");
                let document = Document::new("large", trace);
                Timeline::of(&document)
            });
        });
        let document = Document::new("large", trace);
        let timeline = Timeline::of(&document);
        group.bench_function("cull", |b| {
            b.iter(|| {
                let rows = timeline.lanes.iter().flat_map(|l| &l.rows);
                rows.map(|row| visible(black_box(row), timeline.all(), 1400.0).len()).sum::<usize>()
            });
        });
        for shown in ["all", "frame", "selected", "filtered", "graph", "memory"] {
            let mut viewer = Viewer::new(None, Box::new(NoFiles), Live::without_backend());
            viewer.state.add(document.clone());
            let open = &mut viewer.state.open[0];
            open.view = if shown == "all" { open.timeline.all() } else { open.timeline.frame(0) };
            match shown {
                "selected" => viewer.state.selection = Selection::Kernel("matmul".into()),
                "filtered" => viewer.state.filter = "matmul !blocks.7".into(),
                _ => {}
            }
            let active = match shown {
                "graph" => Panel::Graph,
                "memory" => Panel::Memory,
                _ => Panel::Roofline,
            };
            viewer.tree.make_active(|_, tile| matches!(tile, Tile::Pane(panel) if *panel == active));
            let mut harness = Harness::builder()
                .with_size([1440.0, 900.0])
                .with_context_setup(style)
                .build_ui_state(|ui, viewer: &mut Viewer| viewer.show(ui), viewer);
            harness.run_steps(3);
            group.bench_function(format!("window/{shown}"), |b| b.iter(|| harness.step()));
        }
        group.finish();
    }
}

criterion_group!(benches, layout);
criterion_main!(benches);
