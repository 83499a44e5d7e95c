//! In: a cell and where programs lie; out: the command that runs it, and on which adapters it can. Knows each program's
//! flags.

use crate::cell::{Cell, Program, Weights};
use crate::sizes::{Model, Scale, Sizes};
use kiln::gpu::AdapterInfo;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where programs lie and what they share.
pub struct Programs {
    /// Folders that are looked through in order.
    pub folders: Vec<PathBuf>,
    pub python: PathBuf,
    /// Where parameters are kept that other programs than kiln's read.
    pub weights: PathBuf,
    /// Where kiln and torch.compile keep what they compiled, a folder a cell, so that each starts cold.
    pub scratch: PathBuf,
}

/// How a cell's program is started.
#[derive(Clone, Copy)]
pub struct Start<'a> {
    /// Timed runs.
    pub runs: usize,
    /// How many more begin at once.
    pub others: usize,
    /// The cell whose compiled kernels it finds and to which it adds its own.
    pub keeps: &'a Cell,
}

/// The device that cells are run on.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// With its PCI address where several of the machine have one name.
    pub name: String,
    pub driver: String,
    pub cpu: bool,
    /// What programs are asked for.
    choice: String,
    /// Where the machine has other GPUs, so that PyTorch must be told which it is.
    pub pci: Option<String>,
    /// The machine's first, which programs take that choose their device themselves.
    first: bool,
}

/// The best adapter, all, those whose names contain a text, or the one that has it as its PCI address. Those that cannot be
/// told from one before them are passed over, as one card is that two APIs show.
pub fn choose(found: &[AdapterInfo], wanted: &str) -> Vec<Adapter> {
    let chosen = found.iter().enumerate().filter(|(i, a)| match wanted {
        "best" => *i == 0,
        "all" => true,
        _ => a.is_named(wanted),
    });
    let hidden = |(i, a): &(usize, &AdapterInfo)| {
        found[..*i].iter().any(|b| b.name == a.name && (a.pci.is_none() || a.pci == b.pci))
    };
    let chosen: Vec<(usize, &AdapterInfo)> = chosen.filter(|a| !hidden(a)).collect();
    let gpus = found.iter().enumerate().filter(|a| a.1.kind != "CPU" && !hidden(a)).count();
    let adapter = |&(i, a): &(usize, &AdapterInfo)| {
        let namesakes = found.iter().enumerate().filter(|b| b.1.name == a.name && !hidden(b)).count();
        let name = match &a.pci {
            Some(pci) if namesakes > 1 => format!("{} ({pci})", a.name),
            _ => a.name.clone(),
        };
        // an address tells more than a name, unless another driver shows the same card before
        let first = |pci: &String| found.iter().position(|b| b.pci.as_ref() == Some(pci)) == Some(i);
        let choice = a.pci.clone().filter(first).unwrap_or_else(|| a.name.clone());
        let pci = a.pci.clone().filter(|_| gpus > 1);
        Adapter { name, driver: a.driver.clone(), cpu: a.kind == "CPU", choice, pci, first: i == 0 }
    };
    chosen.iter().map(adapter).collect()
}

impl Adapter {
    /// Whether a program can be run on it: peers choose their device themselves, PyTorch can be told a PCI address.
    pub fn runs(&self, program: Program) -> bool {
        match program {
            Program::Kiln => true,
            Program::Pytorch => self.cpu || self.first || self.pci.is_some(),
            Program::Burn | Program::Meganeura => self.first,
        }
    }
}

impl Programs {
    fn find(&self, name: &str) -> Result<PathBuf, String> {
        let with_suffix = format!("{name}{}", std::env::consts::EXE_SUFFIX);
        let places = self.folders.iter().flat_map(|f| [f.join(&with_suffix), f.join(name)]);
        places.into_iter().find(|p| p.is_file()).ok_or_else(|| {
            let folders: Vec<String> = self.folders.iter().map(|f| f.display().to_string()).collect();
            format!(
                "{name} is not in {}; `cargo xtask bench` builds what it is asked to compare, --programs names other folders",
                folders.join(", ")
            )
        })
    }

    /// Of files that run one of some cells what is said of those that are missing, which else is known hours later.
    pub fn missing(&self, cells: &[Cell]) -> Vec<String> {
        let files: BTreeSet<String> = cells.iter().map(|cell| file_of(cell.program)).collect();
        files.iter().filter_map(|file| self.find(file).err()).collect()
    }

    /// kiln's example with an adapter.
    fn seed_models(&self, adapter: &Adapter) -> Result<Command, String> {
        let mut command = Command::new(self.find(&file_of(Program::Kiln))?);
        command.args(["--lines", "--adapter", &adapter.choice]);
        Ok(command)
    }

    /// What measures an adapter's peaks.
    pub fn peak(&self, adapter: &Adapter) -> Result<Command, String> {
        let mut command = self.seed_models(adapter)?;
        command.arg("--peak");
        Ok(command)
    }

    /// Where what compiled for a cell is kept: there is such a folder once its program began to.
    pub fn kept(&self, cell: &Cell, adapter: &Adapter) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let of_adapter = adapter.choice.chars().map(plain).collect::<String>();
        self.scratch.join(of_adapter).join(cell.to_string().replace('/', "-"))
    }

    /// What runs a cell. PyTorch's is held after its first run where others begin at once, and compiles on its share of the
    /// machine's threads.
    pub fn cell(&self, cell: &Cell, adapter: &Adapter, start: Start) -> Result<Command, String> {
        let Start { runs, others, keeps } = start;
        let kept = self.kept(keeps, adapter);
        let mut command = match cell.program {
            Program::Kiln => {
                let mut command = self.seed_models(adapter)?;
                // what drivers keep by themselves would make the first start a later one
                command.envs([("__GL_SHADER_DISK_CACHE", "0"), ("MESA_SHADER_CACHE_DISABLE", "true")]);
                command.env("KILN_CACHE_DIR", kept);
                command.args(["--model", &cell.model.to_string(), "--scale", &cell.scale.to_string()]);
                command.args(["--init", &cell.weights.to_string(), "--mode", &cell.variant]);
                command
            }
            Program::Pytorch => {
                let mut command = Command::new(&self.python);
                command.arg(self.find(&file_of(cell.program))?);
                command.env("TORCHINDUCTOR_CACHE_DIR", kept);
                command.args(["--device", if adapter.cpu { "cpu" } else { "cuda" }]);
                if let Some(pci) = &adapter.pci {
                    command.args(["--pci", pci]);
                }
                if others > 0 {
                    command.arg("--hold");
                    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
                    command.env("TORCHINDUCTOR_COMPILE_THREADS", (threads / (others + 1)).max(1).to_string());
                }
                self.add_model(&mut command, cell);
                command.args(["--variant", &cell.variant]);
                command
            }
            Program::Burn | Program::Meganeura => {
                let mut command = Command::new(self.find(&file_of(cell.program))?);
                self.add_model(&mut command, cell);
                command
            }
        };
        command.args(["--phase", &cell.phase.to_string(), "--precision", &cell.precision]);
        command.args(["--runs", &runs.to_string()]);
        Ok(command)
    }

    /// A model's sizes and parameters, for programs that do not know them.
    fn add_model(&self, command: &mut Command, cell: &Cell) {
        let sizes = Sizes::of(cell.model, cell.scale);
        command.args(["--model", &cell.model.to_string(), "--weights"]);
        command.arg(self.weights_of(cell.model, cell.scale, cell.weights));
        let mut number = |flag: &str, value: usize| {
            command.args([flag, &value.to_string()]);
        };
        number("--rows", sizes.rows);
        number("--width", sizes.width);
        number("--depth", sizes.depth);
        if cell.model == Model::Gptlite {
            number("--heads", sizes.heads);
            number("--vocab", sizes.vocab);
        }
    }

    fn weights_of(&self, model: Model, scale: Scale, weights: Weights) -> PathBuf {
        self.weights.join(scale.to_string()).join(format!("{model}-{weights}.safetensors"))
    }

    /// What writes the parameters that a cell reads, if it reads some and they are not there.
    pub fn save(&self, cell: &Cell) -> Result<Option<Command>, String> {
        let path = self.weights_of(cell.model, cell.scale, cell.weights);
        if cell.program == Program::Kiln || path.is_file() {
            return Ok(None);
        }
        let mut command = Command::new(self.find(&file_of(Program::Kiln))?);
        command.arg("--save").arg(path.parent().unwrap_or(Path::new(".")));
        command.args(["--model", &cell.model.to_string(), "--scale", &cell.scale.to_string()]);
        command.args(["--init", &cell.weights.to_string()]);
        Ok(Some(command))
    }
}

/// What runs a program's cells.
fn file_of(program: Program) -> String {
    match program {
        Program::Kiln => "seed_models".into(),
        Program::Pytorch => "models.py".into(),
        Program::Burn | Program::Meganeura => format!("kiln-peer-{program}"),
    }
}

/// A command as it would be typed; folders are left out, which differ from machine to machine.
pub fn typed(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let word = |w: &std::ffi::OsStr| {
        let path = Path::new(w);
        let name = if path.is_absolute() { path.file_name().unwrap_or(w) } else { w };
        let text = name.to_string_lossy().into_owned();
        if text.contains([' ', '(', ')']) { format!("'{text}'") } else { text }
    };
    words.map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::cell;

    fn programs(folder: &Path) -> Programs {
        Programs {
            folders: vec![folder.to_owned()],
            python: "python3".into(),
            weights: folder.join("weights"),
            scratch: folder.join("scratch"),
        }
    }

    fn info(name: &str, kind: &str, pci: Option<&str>) -> AdapterInfo {
        let (name, driver, backend) = (name.into(), "driver".into(), "Vulkan".into());
        AdapterInfo { name, driver, backend, kind: kind.into(), pci: pci.map(str::to_owned) }
    }

    #[test]
    fn cards_of_one_name_are_told_apart_by_their_addresses() {
        let (one, other) = ("0000:61:00.0", "0000:a1:00.0");
        let found = [
            info("NVIDIA H200", "discrete GPU", Some(one)),
            info("NVIDIA H200", "discrete GPU", Some(other)),
            // the first again, over an API that does not tell
            info("NVIDIA H200", "discrete GPU", None),
            info("llvmpipe", "CPU", None),
        ];
        let names = |wanted| choose(&found, wanted).into_iter().map(|a| (a.name, a.choice)).collect::<Vec<_>>();
        let of = |name: &str, choice: &str| (name.to_owned(), choice.to_owned());
        let both = [of("NVIDIA H200 (0000:61:00.0)", one), of("NVIDIA H200 (0000:a1:00.0)", other)];
        assert_eq!(names("h200"), both);
        assert_eq!(names("all"), [&both[..], &[of("llvmpipe", "llvmpipe")]].concat());
        // also alone: with its name only, one would go on with the other's run
        assert_eq!(names("best"), both[..1]);
        assert_eq!(names("0000:A1:00.0"), both[1..]);
        assert_eq!(names("radeon"), []);
        let runs = |wanted, program| choose(&found, wanted)[0].runs(program);
        assert!(runs(one, Program::Burn) && !runs(other, Program::Burn) && runs(other, Program::Pytorch));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("models.py"), "").unwrap();
        let cell = cell("pytorch/wide/full/he/infer/graph/f32");
        let command = programs(folder.path())
            .cell(&cell, &choose(&found, other)[0], Start { runs: 30, others: 2, keeps: &cell })
            .unwrap();
        assert!(
            typed(&command).contains(" --device cuda --pci 0000:a1:00.0 --hold --model wide "),
            "{}",
            typed(&command)
        );
    }

    #[test]
    fn cards_of_other_names_are_told_apart_too() {
        let found = [
            info("GeForce RTX 3060 Ti", "discrete GPU", Some("0000:01:00.0")),
            info("GeForce RTX 3060", "discrete GPU", Some("0000:02:00.0")),
            // the first once more, by another driver
            info("GeForce RTX", "discrete GPU", Some("0000:01:00.0")),
            info("llvmpipe", "CPU", None),
        ];
        let all = choose(&found, "all");
        let told: Vec<(&str, Option<&str>)> = all.iter().map(|a| (a.choice.as_str(), a.pci.as_deref())).collect();
        let [one, other] = ["0000:01:00.0", "0000:02:00.0"].map(|pci| (pci, Some(pci)));
        assert_eq!(told, [one, other, ("GeForce RTX", Some("0000:01:00.0")), ("llvmpipe", None)]);
        let alone = &choose(&found[1..2], "best")[0];
        assert_eq!((alone.choice.as_str(), alone.pci.as_deref()), ("0000:02:00.0", None));
        // each begins with nothing that another card's program kept
        let (programs, cell) = (programs(Path::new("")), cell("kiln/wide/full/he/infer/fused/highest"));
        let kept = |adapter| programs.kept(&cell, adapter);
        assert!(kept(&all[0]) != kept(&all[1]) && kept(&all[0]).is_relative(), "{:?}", kept(&all[0]));
    }

    #[test]
    fn a_cell_s_command_holds_all_that_it_is() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["seed_models", "models.py", "kiln-peer-burn"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let programs = programs(folder.path());
        let [adapter] = choose(&[info("llvmpipe (LLVM 15)", "CPU", None)], "best").try_into().unwrap();
        let command = |id: &str| {
            let cell = cell(id);
            typed(&programs.cell(&cell, &adapter, Start { runs: 30, others: 0, keeps: &cell }).unwrap())
        };
        assert_eq!(
            command("kiln/deep/small/he/train/fused/highest"),
            "seed_models --lines --adapter 'llvmpipe (LLVM 15)' --model deep --scale small --init he --mode fused \
             --phase train --precision highest --runs 30"
        );
        assert_eq!(
            command("pytorch/gptlite/full/default/infer/sdpa-eager/f32"),
            "python3 models.py --device cpu --model gptlite --weights gptlite-default.safetensors --rows 2048 \
             --width 768 --depth 12 --heads 12 --vocab 65 --variant sdpa-eager --phase infer --precision f32 --runs 30"
        );
        assert_eq!(
            command("burn/wide/full/he/infer/fusion/f32"),
            "kiln-peer-burn --model wide --weights wide-he.safetensors --rows 2048 --width 8192 --depth 3 --phase infer \
             --precision f32 --runs 30"
        );
    }

    #[test]
    fn parameters_are_written_once_and_for_others_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("seed_models"), "").unwrap();
        let programs = programs(folder.path());
        assert_eq!(programs.save(&cell("kiln/deep/small/he/infer/fused/highest")).unwrap().map(|c| typed(&c)), None);
        let other = cell("burn/deep/small/he/infer/fusion/f32");
        let save = programs.save(&other).unwrap().map(|c| typed(&c));
        assert_eq!(save.as_deref(), Some("seed_models --save small --model deep --scale small --init he"));
        std::fs::create_dir_all(folder.path().join("weights/small")).unwrap();
        std::fs::write(folder.path().join("weights/small/deep-he.safetensors"), "").unwrap();
        assert_eq!(programs.save(&other).unwrap().map(|c| typed(&c)), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let [adapter] = choose(&[info("a", "discrete GPU", None)], "best").try_into().unwrap();
        let cell = cell("meganeura/deep/full/he/infer/session/f32");
        let found = programs(folder.path()).cell(&cell, &adapter, Start { runs: 30, others: 0, keeps: &cell });
        let words = format!(
            "kiln-peer-meganeura is not in {}; `cargo xtask bench` builds what it is asked to compare, --programs names other \
             folders",
            folder.path().display()
        );
        assert_eq!(found.unwrap_err(), words);
        // of all cells, before any is run
        std::fs::write(folder.path().join("seed_models"), "").unwrap();
        let kiln = crate::tests::cell("kiln/deep/full/he/infer/fused/highest");
        assert!(programs(folder.path()).missing(std::slice::from_ref(&kiln)).is_empty());
        assert_eq!(programs(folder.path()).missing(&[cell.clone(), kiln, cell]), [words]);
    }
}
