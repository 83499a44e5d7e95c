//! Time to load a trace of 100,000 spans, to lay it out, and to lay a frame of the window out, by zoom. Needs no GPU.

use criterion::{Criterion, criterion_group, criterion_main};
use egui_kittest::Harness;
use kiln::trace::Trace;
use kiln_viewer::app::{Viewer, style};
use kiln_viewer::files::NoFiles;
use kiln_viewer::live::panel::Live;
use kiln_viewer::model::document::Document;
use kiln_viewer::model::timeline::{Timeline, visible};
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
        for zoom in ["all", "frame"] {
            let mut viewer = Viewer::new(None, Box::new(NoFiles), Live::without_backend());
            viewer.state.add(document.clone());
            let open = &mut viewer.state.open[0];
            open.view = if zoom == "all" { open.timeline.all() } else { open.timeline.frame(0) };
            let mut harness = Harness::builder()
                .with_size([1440.0, 900.0])
                .with_context_setup(style)
                .build_ui_state(|ui, viewer: &mut Viewer| viewer.show(ui), viewer);
            harness.run_steps(3);
            group.bench_function(format!("window/{zoom}"), |b| b.iter(|| harness.step()));
        }
        group.finish();
    }
}

criterion_group!(benches, layout);
criterion_main!(benches);
