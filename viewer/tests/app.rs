//! In: files, keys and a backend that stands still; out: what the whole window makes of them. Draws nothing to pixels.

use eframe::egui::accesskit::Role;
use eframe::egui::{DroppedFile, DroppedFileHandle, Event, Key, Modifiers};
use egui_kittest::Harness;
use egui_kittest::kittest::Queryable;
use egui_tiles::Tile;
use kiln::trace::Trace;
use kiln_viewer::app::{Viewer, style};
use kiln_viewer::files::{Files, Later, NoFiles};
use kiln_viewer::live::panel::Live;
use kiln_viewer::live::{Backend, Job, Mode, Step, Worker};
use kiln_viewer::model::document::Document;
use kiln_viewer::model::selection::Selection;
use kiln_viewer::panels::Panel;
use kiln_viewer::sample;
use std::cell::RefCell;
use std::future::ready;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

fn window<'a>(files: Box<dyn Files>, live: Live) -> Harness<'a, Viewer> {
    Harness::builder()
        .with_size([1440.0, 900.0])
        .with_context_setup(style)
        .build_ui_state(|ui, viewer: &mut Viewer| viewer.show(ui), Viewer::new(None, files, live))
}

fn plain<'a>() -> Harness<'a, Viewer> {
    window(Box::new(NoFiles), Live::without_backend())
}

#[test]
fn a_damaged_file_is_an_error_in_the_window() {
    let mut harness = plain();
    let whole = sample::trace().to_json();
    let other = whole.replace("\"version\":3", "\"version\":7");
    let huge = whole
        .replace("[1200000", "[18446744073709551616")
        .replace("\"begin\":1200000", "\"begin\":18446744073709551616");
    let backwards = whole.replacen("[0,4000]", "[4000,0]", 1);
    assert_ne!(backwards, whole);
    assert_ne!(huge, whole);
    let bad: [(&[u8], &str); 6] = [
        (&whole.as_bytes()[..whole.len() / 2], "t.json: the trace ends early"),
        (other.as_bytes(), "t.json: the trace has version 7, this kiln reads versions 2 to 3"),
        (b"\xff\xfe\x00", "t.json: not a kiln trace: "),
        (b"{\"traceEvents\": []}", "t.json: not a kiln trace: "),
        (huge.as_bytes(), "t.json: not a kiln trace: "),
        (backwards.as_bytes(), "t.json: \"emb\" of frame 0 ends at 0 before it begins at 4000"),
    ];
    for (bytes, error) in bad {
        harness.state_mut().open_bytes("t.json", bytes);
        harness.run_steps(2);
        let message = harness.state().message.clone().expect("an error is shown");
        assert!(message.0 && message.1.starts_with(error), "{message:?}");
        assert!(harness.query_by_label_contains(error).is_some(), "{error}");
        assert!(harness.state().state.open.is_empty());
    }
    // and the window lives on
    harness.state_mut().open_bytes("t.json", whole.as_bytes());
    harness.run_steps(2);
    assert_eq!((harness.state().state.open.len(), harness.state().message.clone()), (1, None));
    assert_eq!(harness.state().state.settings.recent, ["t.json"]);
}

/// Remembers what was written.
#[derive(Clone, Default)]
struct Kept(Rc<RefCell<Vec<Written>>>);

/// A name and what was written under it.
type Written = (String, Vec<u8>);

impl Files for Kept {
    fn read(&self, path: &str) -> Later<Result<Vec<u8>, String>> {
        Box::pin(ready(Err(format!("{path}: not found"))))
    }

    fn dropped(&self, file: DroppedFileHandle) -> Later<Result<Vec<u8>, String>> {
        Box::pin(ready(file.bytes()))
    }

    fn carry_out(&self, work: Later<()>) {
        pollster::block_on(work);
    }

    fn write(&self, stem: &str, extension: &str, bytes: &[u8]) -> Result<String, String> {
        self.0.borrow_mut().push((format!("{stem}.{extension}"), bytes.to_vec()));
        Ok(format!("{stem}.{extension}"))
    }
}

#[test]
fn a_file_that_is_not_there_is_named_and_exports_are_written() {
    let kept = Kept::default();
    let mut harness = window(Box::new(kept.clone()), Live::without_backend());
    let ctx = harness.ctx.clone();
    harness.state_mut().open(&["nowhere.json"], &ctx);
    assert_eq!(harness.state().message, Some((true, "nowhere.json: not found".into())));
    harness.state_mut().message = None;
    harness.state_mut().state.add(sample::document());
    harness.run_steps(2);
    harness.get_by_label("File").click();
    harness.run_steps(3);
    harness.get_by_label("Save for Perfetto").click();
    harness.run_steps(3);
    let written = kept.0.borrow();
    assert_eq!(written.len(), 1);
    assert_eq!(written[0].0, "kiln-perfetto.json");
    assert_eq!(written[0].1, sample::trace().to_chrome().into_bytes());
    assert_eq!(harness.state().message, Some((false, "written to kiln-perfetto.json".into())));
}

/// A file that is dropped.
#[derive(Debug)]
struct Dropped(&'static str, String);

impl DroppedFile for Dropped {
    fn path(&self) -> &Path {
        Path::new(self.0)
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        Ok(self.1.clone().into_bytes())
    }
}

#[test]
fn files_that_are_dropped_are_opened_or_named() {
    let mut harness = window(Box::new(Kept::default()), Live::without_backend());
    let good = Dropped("good.json", sample::trace().to_json());
    // what comes after it does not hide it
    let bad = Dropped("bad.json", "{".into());
    harness.input_mut().dropped_files = vec![Arc::new(bad), Arc::new(good)];
    harness.run_steps(2);
    let viewer = harness.state();
    assert_eq!(viewer.state.open.len(), 1);
    assert_eq!(viewer.state.open[0].document.name, "good.json");
    let (bad, message) = viewer.message.clone().expect("the other is damaged");
    assert!(bad && message.starts_with("bad.json: the trace ends early"), "{message}");
}

/// A browser: what is read comes when it is asked for again.
#[derive(Clone, Default)]
struct Slow(Rc<RefCell<Vec<Later<()>>>>);

impl Files for Slow {
    fn read(&self, _: &str) -> Later<Result<Vec<u8>, String>> {
        Box::pin(ready(Ok(sample::trace().to_json().into_bytes())))
    }

    fn dropped(&self, file: DroppedFileHandle) -> Later<Result<Vec<u8>, String>> {
        Box::pin(ready(file.bytes()))
    }

    fn write(&self, stem: &str, _: &str, _: &[u8]) -> Result<String, String> {
        Err(format!("{stem}: refused"))
    }

    fn carry_out(&self, work: Later<()>) {
        self.0.borrow_mut().push(work);
    }
}

#[test]
fn a_file_that_comes_later_is_opened_then() {
    let slow = Slow::default();
    let mut harness = window(Box::new(slow.clone()), Live::without_backend());
    let ctx = harness.ctx.clone();
    harness.state_mut().open(&["folder/t.json"], &ctx);
    harness.run_steps(2);
    assert!(harness.state().state.open.is_empty());
    slow.0.borrow_mut().drain(..).for_each(pollster::block_on);
    harness.run_steps(2);
    assert_eq!(harness.state().state.open[0].document.name, "t.json");
}

/// What the fuzzer came past the reader's checks with, and what it did not: none may do harm, here in every panel.
#[test]
fn what_the_fuzzer_found_is_shown_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/trace");
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut harness = plain();
    let mut shown = 0;
    for file in &files {
        let name = file.display().to_string();
        harness.state_mut().open_bytes(&name, &std::fs::read(file).unwrap());
        let refused = harness.state_mut().message.take();
        let Some(open) = harness.state().state.current() else {
            assert!(refused.is_some_and(|(bad, _)| bad), "{name} was neither opened nor refused");
            continue;
        };
        shown += 1;
        let view = open.timeline.all();
        harness.state_mut().state.open[0].view = view;
        for panel in [Panel::Roofline, Panel::Memory, Panel::Graph] {
            harness.state_mut().tree.make_active(|_, tile| matches!(tile, Tile::Pane(pane) if *pane == panel));
            harness.run_steps(1);
        }
        harness.state_mut().state.close(0);
    }
    assert!(shown > 10 && shown < files.len(), "{shown} of {} are traces", files.len());
}

#[test]
fn keys_open_the_list_and_escape_goes_back_step_by_step() {
    let mut harness = plain();
    harness.state_mut().state.add(sample::document());
    harness.run_steps(2);
    harness.event(Event::Text("?".into()));
    harness.run_steps(2);
    assert!(harness.state().help);
    assert!(harness.query_by_label("this list").is_some());
    harness.state_mut().state.filter = "matmul".into();
    harness.state_mut().state.selection = Selection::Dispatch(1);
    let mut left = Vec::new();
    for _ in 0..3 {
        harness.key_press(Key::Escape);
        harness.run_steps(2);
        let viewer = harness.state();
        left.push((viewer.help, viewer.state.filter.clone(), viewer.state.selection.clone()));
    }
    let one = Selection::Dispatch(1);
    assert_eq!(
        left,
        [(false, "matmul".into(), one.clone()), (false, String::new(), one), (false, String::new(), Selection::None)]
    );
    harness.key_press_modifiers(Modifiers::COMMAND, Key::W);
    harness.run_steps(2);
    assert!(harness.state().state.open.is_empty());
}

#[test]
fn escape_in_a_field_or_menu_leaves_the_filter() {
    let mut harness = plain();
    harness.state_mut().state.add(sample::document());
    harness.state_mut().state.filter = "matmul".into();
    harness.run_steps(2);
    let asks = |harness: &Harness<'_, Viewer>| harness.query_by_label_contains("A file can be dropped").is_some();
    harness.key_press_modifiers(Modifiers::COMMAND, Key::O);
    harness.run_steps(2);
    assert!(asks(&harness));
    harness.key_press(Key::Escape);
    harness.run_steps(2);
    assert!(!asks(&harness) && harness.state().state.filter == "matmul");
    harness.get_by_label("File").click();
    harness.run_steps(2);
    assert!(harness.query_by_label("Open again").is_some());
    harness.key_press(Key::Escape);
    harness.run_steps(2);
    assert!(harness.query_by_label("Open again").is_none() && harness.state().state.filter == "matmul");
    harness.key_press(Key::Escape);
    harness.run_steps(2);
    assert_eq!(harness.state().state.filter, "");
    // in its own field too
    harness.state_mut().state.filter = "norm".into();
    harness.key_press_modifiers(Modifiers::COMMAND, Key::F);
    harness.run_steps(2);
    harness.key_press(Key::Escape);
    harness.run_steps(2);
    assert_eq!(harness.state().state.filter, "");
}

#[test]
fn a_path_that_cannot_be_opened_stays_to_be_mended() {
    let mut harness = window(Box::new(Kept::default()), Live::without_backend());
    harness.run_steps(2);
    harness.key_press_modifiers(Modifiers::COMMAND, Key::O);
    harness.run_steps(2);
    harness.event(Event::Text("nowhere.json".into()));
    harness.run_steps(2);
    for _ in 0..2 {
        harness.get_by_label("Open").click();
        harness.run_steps(2);
        assert_eq!(harness.state().message, Some((true, "nowhere.json: not found".into())));
        // once more, and what was typed is still there
        harness.state_mut().message = None;
        harness.key_press_modifiers(Modifiers::COMMAND, Key::O);
        harness.run_steps(2);
    }
}

#[test]
fn another_trace_to_compare_takes_the_selection_away() {
    let mut harness = plain();
    harness.state_mut().state.add(Document::new("one.json", sample::eager()));
    harness.state_mut().state.add(Document::new("two.json", sample::trace()));
    harness.state_mut().tree.make_active(|_, tile| matches!(tile, Tile::Pane(pane) if *pane == Panel::Compare));
    harness.state_mut().state.selection = Selection::Dispatch(1);
    harness.run_steps(3);
    harness.get_by_role_and_label(Role::ComboBox, "second").click();
    harness.run_steps(3);
    let one = harness.state().state.open[0].document.caption();
    harness.get_all_by_label(&one).last().expect("the list has it").click();
    harness.run_steps(3);
    let state = &harness.state().state;
    assert_eq!((state.base, state.current, &state.selection), (0, 0, &Selection::None));
}

#[test]
fn a_click_in_one_panel_selects_in_all() {
    let mut harness = plain();
    harness.state_mut().state.add(sample::document());
    harness.run_steps(3);
    harness.get_all_by_label_contains("attention").next().expect("the table names it").click();
    harness.run_steps(3);
    harness.state_mut().state.selection = Selection::Kernel("matmul".into());
    harness.run_steps(3);
    assert!(harness.query_by_label("kernel matmul").is_some(), "the status line says what is selected");
    assert!(harness.query_by_label_contains("4 dispatches, ").is_some());
}

/// Stands still in every call until it is let go on.
struct Still {
    gate: Receiver<()>,
}

impl Backend for Still {
    fn adapters(&mut self) -> Result<Vec<String>, String> {
        Ok(vec!["sample device".into()])
    }

    fn open(&mut self, job: &Job) -> Result<Trace, String> {
        self.gate.recv().map_err(|e| e.to_string())?;
        let trace = if job.mode == Mode::Eager { sample::eager() } else { sample::trace() };
        Ok(Trace { frames: Vec::new(), ..trace })
    }

    fn step(&mut self) -> Result<Step, String> {
        self.gate.recv().map_err(|_| "device lost: a test; open a new session".to_owned())?;
        Ok(Step { frame: sample::trace().frames[0].clone(), loss: None })
    }
}

fn still<'a>() -> (Harness<'a, Viewer>, Sender<()>) {
    let (go, gate) = channel();
    let gate = RefCell::new(Some(gate));
    let live = Live::new(Box::new(move || {
        let gate = gate.borrow_mut().take().ok_or("one worker is enough")?;
        Worker::start(move || Still { gate }, || ())
    }));
    (window(Box::new(NoFiles), live), go)
}

/// Shows frames until something holds.
fn until(harness: &mut Harness<'_, Viewer>, holds: impl Fn(&Viewer) -> bool) {
    while !holds(harness.state()) {
        harness.step();
        std::thread::yield_now();
    }
}

#[test]
fn the_window_never_waits_for_a_model_that_stands_still() {
    let (mut harness, go) = still();
    harness.state_mut().state.live.start(Job::default());
    // the backend stands in `open`: frames are shown all the same
    for _ in 0..20 {
        harness.step();
    }
    assert!(harness.state().state.live.starting && harness.state().state.live.running.is_none());
    go.send(()).unwrap();
    until(&mut harness, |v| v.state.live.running.is_some());
    // it stands in its first step
    for _ in 0..20 {
        harness.step();
    }
    assert_eq!(harness.state().state.live.frames, 0);
    go.send(()).unwrap();
    until(&mut harness, |v| v.state.live.frames == 1 && v.state.open.len() == 1);
    assert_eq!(harness.state().state.open[0].document.trace.frames.len(), 1);
    // the device is lost
    drop(go);
    until(&mut harness, |v| v.state.live.error.is_some());
    harness.run_steps(2);
    assert_eq!(harness.state().state.live.error.as_deref(), Some("device lost: a test; open a new session"));
    assert!(harness.state().state.live.running.is_none());
    assert_eq!(harness.state().state.open.len(), 1, "what was run stays open");
}

#[test]
fn a_run_s_trace_that_was_closed_stays_closed() {
    let (mut harness, go) = still();
    harness.state_mut().state.live.start(Job::default());
    go.send(()).unwrap();
    go.send(()).unwrap();
    until(&mut harness, |v| v.state.open.len() == 1);
    harness.state_mut().state.close(0);
    go.send(()).unwrap();
    until(&mut harness, |v| v.state.live.frames == 2);
    // a run that ends gives its trace once more
    harness.state_mut().state.live.stop();
    go.send(()).unwrap();
    drop(go);
    until(&mut harness, |v| v.state.live.running.is_none());
    harness.run_steps(2);
    assert!(harness.state().state.open.is_empty());
}

#[test]
fn a_second_run_is_compared_with_the_first() {
    let (mut harness, go) = still();
    let job = |mode| Job { mode, ..Job::default() };
    for (i, mode) in [Mode::Fused, Mode::Recorded].into_iter().enumerate() {
        harness.state_mut().state.live.start(job(mode));
        go.send(()).unwrap();
        go.send(()).unwrap();
        go.send(()).unwrap();
        until(&mut harness, |v| v.state.open.len() == i + 1);
    }
    let state = &harness.state().state;
    assert_eq!((state.base, state.current), (0, 1));
    assert!(state.open[0].document.name.ends_with("fused") && state.open[1].document.name.ends_with("recorded"));
    drop(go);
    until(&mut harness, |v| v.state.live.error.is_some());
    harness.run_steps(2);
}

#[test]
fn large_traces_are_opened_and_shown() {
    let mut harness = plain();
    harness.state_mut().state.add(Document::new("large", sample::large(5_000, 4)));
    harness.run_steps(3);
    harness.state_mut().state.selection = Selection::Kernel("matmul".into());
    let open = &mut harness.state_mut().state.open[0];
    open.view = open.timeline.all();
    harness.run_steps(3);
    assert_eq!(harness.state().state.open[0].timeline.frames.len(), 4);
}
