//! Choices that are measured, kept in files and brought along, and compiled pipelines: rows E10 and E16 of the public bug
//! reports that kiln's tests are numbered by. Sizes are tiny and candidates few.

mod device;

use device::{Named, assert_close, fill, named, noise, own_session, refs, session, tiled};
use kiln::cache::{self, CacheDir};
use kiln::caps::DeviceCaps;
use kiln::gpu::AdapterInfo;
use kiln::graph::{Builder, DType, Graph, TensorType};
use kiln::kernel::{Config, Problem};
use kiln::reference::evaluate;
use kiln::session::{CompileOptions, Session, compile};
use kiln::tune::{CompileMode, Entry, Limits, TuneOptions, TuneReport, Tuning, TuningCache, file_name};
use serde_json::{Value, json};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// relu(x · w), (rows, 64) · (64, 48).
fn product(rows: usize) -> (Graph, Named, Named) {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [rows, 64])).unwrap();
    let w = b.parameter("w", TensorType::new(DType::F32, [64, 48])).unwrap();
    let y = b.matmul(x, w).unwrap();
    let y = b.relu(y).unwrap();
    b.output("y", y).unwrap();
    let w = fill(&[64, 48], |i| noise(1, i));
    let x = fill(&[rows, 64], |i| noise(2, i));
    (b.finish().unwrap(), named([("w", w)]), named([("x", x)]))
}

/// Tuned as a GPU is, with two candidates of each problem.
fn options(session: &Session, dir: &Path) -> CompileOptions {
    let options = CompileOptions {
        compile_mode: CompileMode::MaxAutotune,
        tune: TuneOptions { budget: Duration::MAX, candidates: 2 },
        cache: CacheDir::At(dir.to_owned()),
        ..CompileOptions::default()
    };
    tiled(session, options)
}

fn tune(session: &Session, rows: usize, options: &CompileOptions) -> Tuning {
    let limits = options.limits.as_ref().unwrap();
    let compiled = compile(&product(rows).0, limits, options).unwrap();
    session.tune(&compiled, options, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"))
}

/// Whether every answer was known before.
fn all_kept(report: &TuneReport) -> bool {
    assert!(!report.answers.is_empty());
    report.answers.iter().all(|a| a.kept)
}

/// The file of a session that has tuned 40 rows, with its directory.
fn tuned_once(session: &Session) -> (TempDir, std::path::PathBuf, Tuning) {
    let dir = tempfile::tempdir().unwrap();
    let options = options(session, dir.path());
    let tuning = tune(session, 40, &options);
    assert!(!all_kept(&tuning.report) && tuning.report.warnings.is_empty(), "{}", tuning.report);
    let file = session.tuning_file(&options).unwrap();
    assert!(file.starts_with(dir.path()) && file.is_file());
    (dir, file, tuning)
}

/// Changes a file of JSON.
fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut json: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, json.to_string()).unwrap();
}

#[test]
fn a_tuned_program_gives_what_it_should_and_is_known_the_next_time() {
    let Some(session) = session() else { return };
    let dir = tempfile::tempdir().unwrap();
    let options = options(session, dir.path());
    let (graph, params, inputs) = product(40);
    let expected = evaluate(&graph, &params, &inputs).unwrap();
    for kept in [false, true] {
        let program = session.compile(&graph, &params, &options).unwrap();
        assert_close("tuned", &program.run(&refs(&inputs)).unwrap(), &expected, 1e-5);
        let report = program.compiled().tuning().unwrap();
        assert_eq!(all_kept(report), kept, "{report}");
        let answer = &report.answers[0];
        assert_eq!((answer.node.as_str(), answer.uses), ("matmul", 1));
        assert_eq!(answer.problem.0, "matmul f32 1x40x48x64 a:kx4 b:nx4 c:f32x4 steps:1");
        assert!(answer.default_time().is_some() && answer.best_time() <= answer.default_time(), "{report}");
        let decision = &program.compiled().selected.decisions[0];
        assert_eq!(decision.config, answer.best);
        assert!(report.to_string().contains(&answer.problem.0), "{report}");
    }
}

#[test]
fn a_training_step_is_tuned_slice_by_slice_and_learns_the_same() {
    use kiln::model::{Dnn, DnnConfig, Init, Loss, init};
    let Some(session) = session() else { return };
    let model = Dnn::new(DnnConfig { in_size: 8, width: 32, depth: 2, out_size: 4 });
    let forward = model.build_training(512, Loss::CrossEntropy).unwrap();
    let params = init(&forward.layout, Init::He, 0).unwrap();
    let input = fill(&[512, 8], |i| noise(3, i));
    let targets = kiln::Tensor::i32([512], &(0..512).map(|i| i % 4).collect::<Vec<_>>());
    let batch = [("input", &input), ("targets", &targets)];
    let dir = tempfile::tempdir().unwrap();
    let tuned = options(session, dir.path());
    let untuned = CompileOptions { compile_mode: CompileMode::Default, ..tuned.clone() };
    let mut losses = Vec::new();
    for options in [&untuned, &tuned] {
        let train = kiln::TrainOptions::default();
        let trainer = session.trainer(&forward, &params, &train, options).unwrap();
        let steps = trainer.run_steps(&[batch; 3]).unwrap();
        losses.push(steps.iter().map(|s| f64::from(s.loss)).collect::<Vec<f64>>());
        let report = trainer.program().compiled().tuning();
        assert_eq!(report.is_some(), options.compile_mode == CompileMode::MaxAutotune);
        if let Some(report) = report {
            let slices = report.answers.iter().filter(|a| matches!(a.best, Config::Slice(_)));
            assert!(slices.count() > 0 && report.warnings.is_empty(), "{report}");
        }
    }
    device::assert_numbers("losses", &losses[1], &losses[0], 1e-5);
}

#[test]
fn what_was_brought_along_decides_without_a_measurement() {
    let Some(session) = own_session() else { return };
    let (_dir, file, tuning) = tuned_once(&session);
    // whatever was found, the other one is brought along
    let answer = &tuning.report.answers[0];
    let (_, other) = both(&session, answer.problem.clone());
    edit(&file, |json| json["entries"][0]["config"] = serde_json::to_value(other).unwrap());
    let brought = TuningCache::from_json(&fs::read(&file).unwrap()).unwrap();
    session.preload(&brought).unwrap();
    let off = CompileOptions { cache: CacheDir::Off, ..tiled(&session, CompileOptions::default()) };
    let (graph, params, inputs) = product(40);
    let program = session.compile(&graph, &params, &off).unwrap();
    assert_eq!(program.compiled().selected.decisions[0].config, other);
    let expected = evaluate(&graph, &params, &inputs).unwrap();
    assert_close("preloaded", &program.run(&refs(&inputs)).unwrap(), &expected, 1e-5);
    let tuned = CompileOptions { compile_mode: CompileMode::MaxAutotune, ..off };
    assert!(all_kept(&tune(&session, 40, &tuned).report));
    // one of another adapter is refused in words
    edit(&file, |json| json["adapter"] = json!("Voodoo 2"));
    let elsewhere = TuningCache::load(&file).unwrap().unwrap();
    let name = &session.adapter().name;
    assert_eq!(
        session.preload(&elsewhere).unwrap_err().to_string(),
        format!(
            "the tuning cannot be used: it is for adapter Voodoo 2, this is {name}; tune on this device, or leave it out"
        )
    );
}

/// What the model chooses for the product of 40 rows, and another that the device can run.
fn both(session: &Session, problem: Problem) -> (Config, Config) {
    let options = tiled(session, CompileOptions::default());
    let compiled = compile(&product(40).0, options.limits.as_ref().unwrap(), &options).unwrap();
    let decision = compiled.selected.decisions.iter().find(|d| d.problem == problem).unwrap();
    let other = decision.configs.iter().find(|c| **c != decision.config).unwrap();
    (decision.config, *other)
}

#[test]
fn without_time_the_model_decides_and_the_report_says_so() {
    let Some(session) = session() else { return };
    let dir = tempfile::tempdir().unwrap();
    let options = CompileOptions {
        tune: TuneOptions { budget: Duration::ZERO, ..TuneOptions::default() },
        ..options(session, dir.path())
    };
    let tuning = tune(session, 40, &options);
    assert!(tuning.report.over_budget && tuning.report.answers.iter().all(|a| a.is_untimed() && a.best == a.default));
    let text = tuning.report.to_string();
    assert!(text.contains("(not timed)") && text.contains("the time was over"), "{text}");
    // nothing was found, so nothing is kept
    assert!(!session.tuning_file(&options).unwrap().exists());
}

#[test]
fn e10_an_entry_of_another_shape_limit_adapter_driver_or_source_is_not_used() {
    let Some(session) = session() else { return };
    let (dir, file, _) = tuned_once(session);
    let options = options(session, dir.path());
    assert!(all_kept(&tune(session, 40, &options).report));
    // another shape, other limits
    let other = tune(session, 41, &options);
    assert!(!all_kept(&other.report) && other.report.warnings.is_empty(), "{}", other.report);
    let limits = DeviceCaps { max_invocations: 256, ..options.limits.clone().unwrap() };
    let fewer = CompileOptions { limits: Some(limits), ..options.clone() };
    let other = tune(session, 40, &fewer);
    assert!(!all_kept(&other.report) && other.report.warnings.is_empty(), "{}", other.report);
    // all three are kept beside each other
    assert!(all_kept(&tune(session, 41, &options).report) && all_kept(&tune(session, 40, &fewer).report));
    let header = TuningCache::empty(session.adapter()).to_json();
    let header: Value = serde_json::from_slice(&header).unwrap();
    for (field, what) in
        [("adapter", "adapter"), ("driver", "driver"), ("backend", "backend"), ("source", "kernels"), ("kiln", "kiln")]
    {
        edit(&file, |json| json[field] = json!("other"));
        let report = tune(session, 40, &options).report;
        assert!(!all_kept(&report), "{field}: {report}");
        let this = header[field].as_str().unwrap();
        let words = format!("{}: ignored: it is for {what} other, this is {this}", file.display());
        assert_eq!(report.warnings, [words], "{field}");
        // and then the file is this one's again
        assert!(all_kept(&tune(session, 40, &options).report), "{field}");
    }
    // other words make another file
    let info = session.adapter().clone();
    let driver = AdapterInfo { driver: "other".into(), ..info.clone() };
    assert_ne!(file_name(&info), file_name(&driver));
}

#[test]
fn e10_a_configuration_that_the_device_cannot_run_is_tuned_anew() {
    let Some(session) = session() else { return };
    let (dir, file, tuning) = tuned_once(session);
    let options = options(session, dir.path());
    let tile = json!({"Tile": {"m": 7, "n": 4096, "k": 3, "tm": 7, "tn": 1}});
    edit(&file, |json| json["entries"][0]["config"] = tile);
    let report = tune(session, 40, &options).report;
    let problem = &tuning.report.answers[0].problem;
    let words = format!("{problem}: the device cannot run 7x4096x3, 7x1 each, which was kept for it; timed anew");
    assert_eq!(report.warnings, [words]);
    assert!(!all_kept(&report) && !report.answers[0].is_untimed(), "{report}");
    let report = tune(session, 40, &options).report;
    assert!(all_kept(&report) && report.warnings.is_empty(), "{report}");
    // one that was brought along is not run either: the report says so, and tuning takes it up
    let own = own_session().unwrap();
    edit(&file, |json| json["entries"][0]["config"] = serde_json::to_value(Config::Block(3, 5)).unwrap());
    own.preload(&TuningCache::load(&file).unwrap().unwrap()).unwrap();
    let off = CompileOptions { cache: CacheDir::Off, ..tiled(&own, CompileOptions::default()) };
    let (graph, params, _) = product(40);
    let found = |options: &CompileOptions| {
        let program = own.compile(&graph, &params, options).unwrap();
        let findings = program.report().findings.iter().filter(|f| ["select", "tune"].contains(&f.pass));
        findings.map(ToString::to_string).collect::<Vec<_>>()
    };
    let default = found(&off);
    let words = format!("select: {problem}: the device cannot run {}, which was chosen for it: ", Config::Block(3, 5));
    assert!(default.len() == 1 && default[0].starts_with(&words), "{default:?}");
    let anew = found(&CompileOptions { compile_mode: CompileMode::MaxAutotune, ..off });
    let words =
        format!("tune: {problem}: the device cannot run {}, which was kept for it; timed anew", Config::Block(3, 5));
    assert_eq!(anew, [words]);
    // nor is one that a program is given by hand
    let mut options = tiled(session, CompileOptions::default());
    options.choices.insert(problem.clone(), Config::Block(3, 5));
    let compiled = compile(&product(40).0, options.limits.as_ref().unwrap(), &options).unwrap();
    let decision = &compiled.selected.decisions[0];
    assert_eq!((decision.config, decision.unfit), (decision.configs[0], Some(Config::Block(3, 5))));
}

#[test]
fn e10_a_panic_is_not_swallowed_and_leaves_the_file_as_it_was() {
    let Some(session) = own_session() else { return };
    let (dir, file, _) = tuned_once(&session);
    let options = options(&session, dir.path());
    let before = fs::read(&file).unwrap();
    let compiled = compile(&product(41).0, options.limits.as_ref().unwrap(), &options).unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| session.tune(&compiled, &options, &mut |_| panic!("told to stop"))));
    let Err(words) = panic else { panic!("the tuning went on") };
    assert_eq!(words.downcast_ref::<&str>(), Some(&"told to stop"));
    assert_eq!(fs::read(&file).unwrap(), before);
    // the session goes on as well
    assert!(!all_kept(&tune(&session, 41, &options).report));
}

#[test]
fn e16_a_file_that_is_not_whole_or_of_another_format_is_ignored_with_a_warning_and_replaced() {
    let Some(session) = session() else { return };
    let (dir, file, _) = tuned_once(session);
    let options = options(session, dir.path());
    let whole = fs::read(&file).unwrap();
    let mut later: Value = serde_json::from_slice(&whole).unwrap();
    later["format"] = json!(2);
    later["entries"] = json!("elsewhere");
    let cases: [(&str, Vec<u8>, &str); 5] = [
        ("empty", Vec::new(), "it is not a whole tuning file: EOF"),
        ("corrupt", b"\x00\xffnot JSON".to_vec(), "it is not a whole tuning file: expected value"),
        ("truncated", whole[..whole.len() / 2].to_vec(), "it is not a whole tuning file: EOF"),
        ("of another kind", b"{\"format\": 1}".to_vec(), "it is not a whole tuning file: missing field"),
        ("later", later.to_string().into_bytes(), "it is for format 2, this is 1"),
    ];
    for (what, bytes, words) in cases {
        fs::write(&file, bytes).unwrap();
        let report = tune(session, 40, &options).report;
        assert!(!all_kept(&report), "{what}");
        let [warning] = &report.warnings[..] else { panic!("{what}: {report}") };
        assert!(warning.starts_with(&format!("{}: ignored: {words}", file.display())), "{what}: {warning}");
        // replaced by one that is whole
        let report = tune(session, 40, &options).report;
        assert!(all_kept(&report) && report.warnings.is_empty(), "{what}: {report}");
    }
}

/// What to do where nothing is kept.
const ADVICE: &str = "; let KILN_CACHE_DIR or CompileOptions::cache name a directory that can be written, or none";

#[test]
fn e16_a_directory_that_takes_no_file_is_a_warning() {
    let Some(session) = session() else { return };
    let dir = tempfile::tempdir().unwrap();
    // its parent is a file
    let no_directory = dir.path().join("file");
    fs::write(&no_directory, "in the way").unwrap();
    let mut places = vec![no_directory.join("kiln")];
    let locked = dir.path().join("locked");
    fs::create_dir(&locked).unwrap();
    let mut permissions = fs::metadata(&locked).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&locked, permissions).unwrap();
    // whoever may write everywhere, and Windows, are not stopped by it
    if fs::write(locked.join("try"), "").is_err() {
        places.push(locked.clone());
    }
    let (graph, params, inputs) = product(40);
    let expected = evaluate(&graph, &params, &inputs).unwrap();
    for place in places {
        let options = options(session, &place);
        let program = session.compile(&graph, &params, &options).unwrap();
        assert_close("tuned", &program.run(&refs(&inputs)).unwrap(), &expected, 1e-5);
        let report = program.compiled().tuning().unwrap();
        let kept = report.warnings.iter().filter(|w| w.contains("what was found is not kept")).count();
        assert_eq!(kept, 1, "{}: {report}", place.display());
        // the program's report has it too, and says what to do
        let all = program.report().to_string();
        let said = |l: &str| l.contains(": what was found is not kept: ") && l.ends_with(ADVICE);
        assert_eq!(all.lines().filter(|l| said(l)).count(), 1, "{all}");
    }
}

/// Set in a process that the test below starts.
const CHILD: &str = "KILN_TEST_TUNING_CHILD";

#[test]
fn e16_two_processes_at_once_lose_nothing_and_see_whole_files_alone() {
    const ENTRIES: usize = 25;
    let words = ["any", "1", "Vulkan", "CPU"].map(str::to_owned);
    let [name, driver, backend, kind] = words;
    let info = AdapterInfo { name, driver, backend, kind, pci: None };
    let entry = |process: u32, i: usize| Entry {
        limits: Limits::of(&DeviceCaps::PORTABLE, false),
        problem: Problem(format!("process {process}, entry {i}")),
        config: Config::Slice(i),
        default_ns: 2,
        best_ns: 1,
    };
    if let Some(path) = std::env::var_os(CHILD) {
        let path = Path::new(&path);
        for i in 0..ENTRIES {
            let mut one = TuningCache::empty(&info);
            one.extend([entry(std::process::id(), i)]);
            one.add_to(path).unwrap();
            assert!(TuningCache::load(path).unwrap().unwrap().entries().len() > i, "whole at any time");
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tuning.json");
    let name = "e16_two_processes_at_once_lose_nothing_and_see_whole_files_alone";
    let start = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture"]).env(CHILD, &path).spawn().unwrap()
    };
    let children = [start(), start()];
    let ids: Vec<u32> = children.iter().map(|c| c.id()).collect();
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    let all = TuningCache::load(&path).unwrap().unwrap();
    assert_eq!(all.entries().len(), 2 * ENTRIES);
    for (process, i) in ids.into_iter().flat_map(|p| (0..ENTRIES).map(move |i| (p, i))) {
        let entry = entry(process, i);
        assert_eq!(all.get(&entry.limits, &entry.problem), Some(&entry));
    }
}

#[test]
fn e16_compiled_pipelines_are_kept_and_a_file_that_is_not_whole_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (graph, params, inputs) = product(40);
    let expected = evaluate(&graph, &params, &inputs).unwrap();
    let start_at = |place: &Path| {
        let session = own_session()?;
        let cache = CacheDir::At(place.to_owned());
        let options = CompileOptions { cache, ..CompileOptions::default() };
        let program = session.compile(&graph, &params, &options).unwrap();
        assert_close("compiled", &program.run(&refs(&inputs)).unwrap(), &expected, 1e-5);
        Some((session.gpu().keeps_pipelines(), program.report().to_string()))
    };
    let start = || start_at(dir.path());
    let Some((keeps, report)) = start() else { return };
    assert!(!report.contains("cache: "), "{report}");
    let files = || {
        let names = fs::read_dir(dir.path()).into_iter().flatten().map(|e| e.unwrap().path());
        names.filter(|p| p.extension().is_some_and(|e| e == "bin")).collect::<Vec<_>>()
    };
    if !keeps {
        return assert!(files().is_empty());
    }
    let [file] = &files()[..] else { panic!("{:?}", files()) };
    let whole = fs::read(file).unwrap();
    assert!(cache::unseal(&whole).is_some());
    let mut corrupt = whole.clone();
    *corrupt.last_mut().unwrap() ^= 1;
    for bad in [&b""[..], &whole[..whole.len() / 2], &corrupt, b"elsewhere"] {
        fs::write(file, bad).unwrap();
        let (_, report) = start().unwrap();
        let said = format!("cache: {}: not a whole file of compiled pipelines, which are made anew", file.display());
        assert!(report.lines().any(|l| l == said), "{report}");
        assert!(cache::unseal(&fs::read(file).unwrap()).is_some(), "{} bytes", bad.len());
    }
    // bytes that are whole, of a driver that is not this one
    fs::write(file, cache::seal(&[0xab; 200])).unwrap();
    start();
    let (_, report) = start_at(&file.join("below a file")).unwrap();
    assert!(report.contains(": compiled pipelines cannot be read and are made anew: "), "{report}");
    let said = |l: &str| l.contains(": compiled pipelines are not kept: ") && l.ends_with(ADVICE);
    assert!(report.lines().any(said), "{report}");
}

#[test]
fn nothing_is_kept_where_that_is_asked_for() {
    let Some(session) = session() else { return };
    let dir = tempfile::tempdir().unwrap();
    let off = CompileOptions { cache: CacheDir::Off, ..options(session, dir.path()) };
    assert_eq!(session.tuning_file(&off), None);
    let report = tune(session, 40, &off).report;
    assert!(!all_kept(&report) && report.warnings.is_empty());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
