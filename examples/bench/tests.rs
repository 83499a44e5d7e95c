//! What tests of several modules make, and the runner from end to end with programs that are scripts.

use crate::cell::{Cell, Measurement, Outcome};
use crate::line::Measured;
use crate::sizes::{Model, Phase, Scale, Sizes};

pub fn cell(id: &str) -> Cell {
    id.parse().unwrap_or_else(|e| panic!("{e}"))
}

/// A cell that took this long.
pub fn measurement(id: &str, run: &str, ms: f64) -> Measurement {
    let measured = Measured {
        adapter: "adapter".into(),
        driver: "driver".into(),
        pci: None,
        program: "program 1".into(),
        runs: 30,
        ms,
        p95_ms: ms + 1.0,
        min_ms: ms,
        in_flight_ms: Some(ms),
        device_ms: None,
        first_run_s: 0.5,
        second_start_s: Some(0.25),
        peak_mib: Some(10.0),
        submits: Some(1),
        dispatches: Some(3),
        loss: None,
        note: None,
    };
    Measurement {
        id: id.into(),
        run: run.into(),
        adapter: "adapter".into(),
        driver: "driver".into(),
        date: "2026-11-30T00:00:00Z".into(),
        command: "seed_models".into(),
        outcome: Outcome::Measured(Box::new(measured)),
    }
}

#[test]
fn commands_say_nothing_of_where_things_lie() {
    let args = ["--only", "kiln/*/full", "--python", "/opt/python", "--out=/tmp/x", "--resume"];
    let command = crate::own_command(args.map(str::to_owned));
    assert_eq!(command, "cargo xtask bench --only 'kiln/*/full' --resume");
}

/// A run that is ended and resumed, with scripts in place of programs.
#[cfg(unix)]
#[test]
fn a_run_is_resumed_and_put_together() {
    use crate::cell::{Record, read};
    use crate::{Args, assemble, measure};
    use clap::Parser;
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let script = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let peak = r#"{"line": "peak", "adapter": "A", "driver": "D", "flops": 1e12, "bytes": 1e11}"#;
    let first = r#"{"line": "first", "seconds": 0.25}"#;
    let cell = |program: &str, ms: f64| {
        format!(
            r#"{{"line": "measured", "adapter": "A", "driver": "D", "program": "{program}", "runs": 30, "ms": {ms},
            "p95_ms": {ms}, "min_ms": {ms}, "in_flight_ms": {ms}, "first_run_s": 1, "peak_mib": 5}}"#
        )
        .replace('\n', " ")
    };
    let ours = format!(
        "#!/bin/sh\ncase \"$*\" in *--peak*) echo '{peak}';; *--save*) :;; *'--runs 0'*) echo '{first}';; *) echo '{}';; esac\n",
        cell("kiln", 2.0)
    );
    script("seed_models", &ours);
    script("kiln-peer-meganeura", "#!/bin/sh\necho 'no memory' >&2\nexit 1\n");
    let Ok(adapters) = crate::adapters("best") else { return println!("skipped: no adapter") };
    let args = |more: &[&str]| {
        let (out, parameters) = (at("out"), at("weights"));
        let mut all = vec!["bench", "--run", "r", "--out", &out, "--programs", folder.path().to_str().unwrap()];
        all.extend(["--parameters", &parameters, "--models", "deep", "--weights", "he", "--compare", "meganeura"]);
        all.extend(["--scale", "small", "--precisions", "highest", "--modes", "recorded,fused"]);
        all.extend(more);
        Args::parse_from(all)
    };
    let records = || read(&folder.path().join("out/r.jsonl")).unwrap().0;
    let cells = || records().iter().filter(|r| matches!(r, Record::Cell(_))).count();
    let none = measure(&args(&["--only", "kiln/dep"])).unwrap_err();
    assert_eq!(none, "no cell is like \"kiln/dep\"; without --only, --list names those that there are");
    measure(&args(&["--only", "kiln/*/*/*/infer/fused"])).unwrap();
    assert_eq!(cells(), 1);
    let error = measure(&args(&[])).unwrap_err();
    assert!(error.ends_with("is there; go on with --resume, or name another with --run"), "{error}");
    measure(&args(&["--resume", "--seconds", "0"])).unwrap();
    assert_eq!(cells(), 1, "no time was given");
    let failing = ["--resume", "--only", "meganeura/*/*/*/infer/session/f32"];
    measure(&args(&failing)).unwrap();
    assert_eq!(cells(), 2);
    let page = || std::fs::read_to_string(folder.path().join("out/r.md")).unwrap();
    assert!(page().contains("| failed: no memory |"), "{}", page());
    script("kiln-peer-meganeura", &format!("#!/bin/sh\necho '{}'\n", cell("meganeura", 8.0)));
    measure(&args(&failing)).unwrap();
    assert_eq!(cells(), 2, "a failure stands");
    measure(&args(&[&failing[..], &["--retry-failed"]].concat())).unwrap();
    assert_eq!(cells(), 3);
    measure(&args(&["--resume", "--retry-failed"])).unwrap();
    let others = if adapters[0].cpu { 1 } else { 2 };
    assert_eq!(cells(), 2 * (2 + others) + 1);
    let all = records().len();
    measure(&args(&["--resume"])).unwrap();
    assert_eq!(records().len(), all, "nothing was left to run");
    let page = page();
    assert!(!page.contains("failed"), "{page}");
    assert!(page.contains("| 1.00 (0.250) |"), "{page}");
    let summary = format!("| deep | infer | he | f32 | {} | 2.00 (recorded) | 8.00 (session) | 4.00 |", floor());
    assert!(page.lines().any(|l| l == summary), "{summary}\n{page}");
    assert!(folder.path().join("out/r-deep.svg").is_file());
    let table = |from: &str, to: &str| assemble("t", &[at(from).into()], false, at(to).as_ref());
    table("out/r.jsonl", "other").unwrap();
    assert!(folder.path().join("other/t-deep.svg").is_file());
    let words = "expected lines of JSON, a cell each, as a run writes them; found none";
    assert_eq!(table("out/r.md", "other").unwrap_err(), format!("{}: {words}", at("out/r.md")));
    std::fs::copy(at("out/r.jsonl"), at("other/r.jsonl")).unwrap();
    let both = assemble("t", &[at("out/r.jsonl").into(), at("other/r.jsonl").into()], false, at("other").as_ref());
    let words = "are both of a run r, and ratios are of cells of one run";
    assert!(both.clone().unwrap_err().contains(words), "{both:?}");
    // without the last line's end, as an editor may leave it
    let text = std::fs::read_to_string(at("out/r.jsonl")).unwrap();
    std::fs::write(at("out/r.jsonl"), text.trim_end()).unwrap();
    measure(&args(&["--resume", "--models", "wide", "--only", "kiln/*/*/*/infer/fused"])).unwrap();
    assert_eq!(cells(), 2 * (2 + others) + 2, "a line was lost");
    assert!(folder.path().join("out/r.json").is_file());
    // what was measured stays where a second start fails
    script("seed_models", &ours.replace(&format!("echo '{first}'"), "echo gone >&2; exit 1"));
    measure(&args(&["--resume", "--models", "wide", "--only", "kiln/*/*/*/train/fused"])).unwrap();
    let page = std::fs::read_to_string(at("out/r.md")).unwrap();
    assert!(page.contains("second start: failed: gone"), "{page}");
    assert!(page.contains("| he | highest | kiln | fused | 2.00 (2.00) |"), "{page}");
    // a page that cannot be read may have notes
    std::fs::write(at("out/r.md"), b"## Notes\n\n\xff\n").unwrap();
    let error = assemble("r", &[at("out/r.jsonl").into()], false, at("out").as_ref()).unwrap_err();
    assert!(error.ends_with("move it away, or name another with --run"), "{error}");
    assert_eq!(std::fs::read(at("out/r.md")).unwrap(), b"## Notes\n\n\xff\n");
}

#[test]
fn a_run_of_one_of_two_cards_has_its_address_in_its_name() {
    let (one, other) = ("0000:61:00.0", "0000:a1:00.0");
    let info = |pci: &str| kiln::gpu::AdapterInfo {
        name: "NVIDIA H200".into(),
        driver: "driver".into(),
        backend: "Vulkan".into(),
        kind: "discrete GPU".into(),
        pci: Some(pci.into()),
    };
    let found = [info(one), info(other)];
    let name = |found: &[_], wanted| crate::run_name(&crate::programs::choose(found, wanted), std::time::UNIX_EPOCH);
    assert_eq!(name(&found[..1], "best"), "1970-01-01-nvidia-h200");
    assert_eq!(name(&found, other), "1970-01-01-nvidia-h200-0000-a1-00-0");
    assert_eq!(name(&found, "all"), "1970-01-01-adapters");
}

/// PyTorch's cells that begin at once, with a shell in place of Python.
#[cfg(unix)]
#[test]
fn cells_that_begin_together_are_held_after_their_first_runs() {
    use crate::cell::{Record, read};
    use crate::{Args, measure};
    use clap::Parser;

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let log = at("log");
    let measured = r#"{"line": "measured", "adapter": "A", "driver": "", "program": "p", "runs": 3, "ms": 2, "p95_ms": 2,
        "min_ms": 2, "first_run_s": 1}"#;
    // what it compiles it keeps where the runner says
    let script = format!(
        "echo first >> {log}\nmkdir -p \"$TORCHINDUCTOR_CACHE_DIR\"\necho '{{\"line\": \"first\", \"seconds\": 1}}'\n\
         case \"$*\" in *--hold*) cat;; esac\necho timed >> {log}\necho '{}'\n",
        measured.replace('\n', " ")
    );
    std::fs::write(at("models.py"), script).unwrap();
    let peak = r#"{"line": "peak", "adapter": "A", "driver": "D", "flops": 1e12, "bytes": 1e11}"#;
    std::fs::write(at("seed_models"), format!("#!/bin/sh\necho '{peak}'\n")).unwrap();
    std::process::Command::new("chmod").args(["+x", &at("seed_models")]).status().unwrap();
    if crate::adapters("best").is_err() {
        return println!("skipped: no adapter");
    }
    let run = |name: &str, more: &[&str]| {
        let (out, weights) = (at("out"), at("weights"));
        let mut all = vec!["bench", "--run", name, "--out", &out, "--programs", folder.path().to_str().unwrap()];
        all.extend([
            "--python",
            "sh",
            "--parameters",
            &weights,
            "--models",
            "wide",
            "--weights",
            "he",
            "--phases",
            "infer",
        ]);
        all.extend(["--compare", "pytorch", "--scale", "small"]);
        all.extend(more);
        measure(&Args::parse_from(all)).unwrap();
        let records = read(&folder.path().join(format!("out/{name}.jsonl"))).unwrap().0;
        let notes = records.into_iter().filter_map(|r| match r {
            Record::Cell(Measurement { outcome: Outcome::Measured(m), .. }) => Some(m.note),
            _ => None,
        });
        let order = std::fs::read_to_string(at("log")).unwrap().replace('\n', " ");
        std::fs::remove_file(at("log")).unwrap();
        (notes.collect::<Vec<_>>(), order)
    };
    let three = ["--only", "pytorch/*/*/*/*/eager,compile,max-autotune/f32"];
    assert_eq!(run("alone", &three), (vec![None; 3], "first timed ".repeat(3)));
    let pairs = [&three[..], &["--together", "2"]].concat();
    let beside = Some("first run beside 1 more".to_owned());
    // the third has none to begin with
    let order = "first first timed timed first timed ";
    assert_eq!(run("pairs", &pairs), (vec![beside.clone(), beside, None], order.into()));
    let graphs = ["--only", "pytorch/*/*/*/*/compile,compile-fullgraph/f32"];
    let warm = [&graphs[..], &["--warm-fullgraph"]].concat();
    let after = Some("first run with what compile compiled".to_owned());
    assert_eq!(run("cold", &graphs).0, [None, None]);
    assert_eq!(run("warm", &warm).0, [None, after]);
    // nothing is there yet when both begin
    let both = [&warm[..], &["--together", "2"]].concat();
    let beside = Some("first run beside 1 more".to_owned());
    assert_eq!(run("both", &both).0, [beside.clone(), beside]);
}

#[test]
fn full_models_have_the_weights_and_work_of_the_seed_s() {
    let mib = |model| Sizes::of(model, Scale::Full).parameters() as f64 * 4.0 / f64::from(1 << 20);
    assert_eq!([Model::Gptlite, Model::Deep, Model::Wide].map(|m| mib(m).round()), [331.0, 514.0, 768.0]);
    let gflops = |model, phase| (Sizes::of(model, Scale::Full).flops(phase) / 1e9).round();
    assert_eq!(gflops(Model::Gptlite, Phase::Infer), 425.0);
    assert_eq!(gflops(Model::Wide, Phase::Train), 2199.0);
    assert_eq!(gflops(Model::Deep, Phase::Infer), 550.0);
}

/// 2 · 64 · 64² · 128 FLOPs at the script's 1 TFLOP/s.
fn floor() -> String {
    crate::markdown::number(Some(2.0 * 64.0 * 64.0 * 64.0 * 128.0 / 1e12 * 1e3))
}
