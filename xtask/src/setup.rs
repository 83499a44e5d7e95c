//! In: this machine's system, files and variables; out: a Vulkan loader and driver on Linux, or the command that
//! installs them. Knows nothing of cargo; elsewhere than on Linux it has nothing to do.

use crate::run;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LOADER: &str = "libvulkan.so.1";

/// Variables that name drivers; where one is set the loader looks nowhere else.
const DRIVER_VARIABLES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// A Linux distribution by its package manager.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// And Ubuntu and what comes from them.
    Debian,
    /// And Red Hat Enterprise Linux.
    Fedora,
    /// And Manjaro.
    Arch,
    /// openSUSE and SUSE Linux Enterprise.
    Suse,
    /// Alpine.
    Alpine,
    /// Any other, NixOS among them.
    Other,
}

impl Distribution {
    /// From the text of /etc/os-release: `ID`, else the first of `ID_LIKE` that is known.
    pub fn of(os_release: &str) -> Distribution {
        let ids = [field(os_release, "ID"), field(os_release, "ID_LIKE")];
        let mut known = ids.iter().flatten().flat_map(|v| v.split_whitespace()).filter_map(|id| match id {
            "debian" | "ubuntu" => Some(Distribution::Debian),
            "fedora" | "rhel" | "centos" => Some(Distribution::Fedora),
            "arch" => Some(Distribution::Arch),
            "suse" | "opensuse" | "sles" => Some(Distribution::Suse),
            "alpine" => Some(Distribution::Alpine),
            _ => None,
        });
        known.next().unwrap_or(Distribution::Other)
    }

    /// The command, to be run as root, that installs the loader and Mesa's software driver.
    pub fn command(self) -> Option<&'static str> {
        match self {
            Distribution::Debian => Some("apt-get install -y --no-install-recommends mesa-vulkan-drivers libvulkan1"),
            Distribution::Fedora => Some("dnf install -y mesa-vulkan-drivers vulkan-loader"),
            Distribution::Arch => Some("pacman -S --needed vulkan-swrast vulkan-icd-loader"),
            Distribution::Suse => Some("zypper install -y libvulkan_lvp libvulkan1"),
            Distribution::Alpine => Some("apk add mesa-vulkan-swrast vulkan-loader"),
            Distribution::Other => None,
        }
    }

    /// What to tell a user whose machine we do not change.
    fn advice(self) -> String {
        match self.command() {
            Some(command) => format!("install one with\n    sudo {command}"),
            None => "install the Vulkan loader and a driver with your system's tools; on NixOS, set \
                     hardware.graphics.enable = true and rebuild"
                .into(),
        }
    }
}

/// A value of os-release, without its quotes.
fn field<'a>(os_release: &'a str, name: &str) -> Option<&'a str> {
    let value = os_release.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='))?;
    Some(value.trim().trim_matches(['"', '\'']))
}

/// Where the loader looks for drivers: manifests or folders of them. `variable` reads the environment.
fn driver_places(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let set = |name: &str| variable(name).filter(|v| !v.is_empty());
    if let Some(listed) = DRIVER_VARIABLES.iter().find_map(|name| set(name)) {
        return std::env::split_paths(&listed).collect();
    }
    let home = set("HOME").map(PathBuf::from);
    let mut data: Vec<PathBuf> = home.iter().map(|h| h.join(".local/share")).collect();
    data.extend(set("XDG_DATA_HOME").map(PathBuf::from));
    data.extend(set("XDG_DATA_DIRS").iter().flat_map(std::env::split_paths));
    data.extend(["/etc", "/usr/local/share", "/usr/share", "/run/opengl-driver/share"].map(PathBuf::from));
    data.into_iter().map(|d| d.join("vulkan/icd.d")).collect()
}

/// The manifests at these places, each a file or a folder of .json files.
fn manifests(places: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for place in places {
        if place.is_file() {
            found.push(place.clone());
        }
        let entries = fs::read_dir(place).into_iter().flatten().flatten().map(|e| e.path());
        found.extend(entries.filter(|p| p.extension().is_some_and(|e| e == "json")));
    }
    found
}

/// Whether the dynamic linker finds the Vulkan loader.
fn has_loader() -> bool {
    let cached = ["ldconfig", "/sbin/ldconfig"].iter().any(|program| {
        let output = Command::new(program).arg("-p").stderr(Stdio::null()).output();
        output.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains(LOADER))
    });
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let triple = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let usual = ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/run/opengl-driver/lib", &triple];
    cached || std::env::split_paths(&listed).chain(usual.map(PathBuf::from)).any(|d| d.join(LOADER).exists())
}

/// A machine on which kiln's programs are to run.
pub struct Host {
    linux: bool,
    distribution: Distribution,
}

impl Host {
    /// The machine at hand.
    pub fn this() -> Host {
        let os_release = ["/etc/os-release", "/usr/lib/os-release"].iter().find_map(|p| fs::read_to_string(p).ok());
        Host {
            linux: cfg!(target_os = "linux"),
            distribution: os_release.map_or(Distribution::Other, |text| Distribution::of(&text)),
        }
    }

    /// On Linux without a Vulkan loader or driver, installs them; an error says how to do it by hand.
    pub fn ensure_driver(&self) -> Result<(), String> {
        if !self.linux || (has_loader() && !this_manifests().is_empty()) {
            return Ok(());
        }
        self.install("no Vulkan driver was found")
    }

    /// On Linux, where no driver has a device, installs Mesa's software driver. False if that is no way out: it is
    /// there already, or this is another system.
    pub fn add_software_driver(&self) -> Result<bool, String> {
        if !self.linux || this_manifests().iter().any(|m| is_software(m)) {
            return Ok(false);
        }
        self.install("no Vulkan driver found a device").map(|()| true)
    }

    fn install(&self, why: &str) -> Result<(), String> {
        if let Some(name) = DRIVER_VARIABLES.iter().find(|n| std::env::var_os(n).is_some_and(|v| !v.is_empty())) {
            return Err(format!("{why}: the variable {name} is set, so drivers elsewhere are not looked at; unset it"));
        }
        let (Some(command), Distribution::Debian) = (self.distribution.command(), self.distribution) else {
            return Err(format!("{why}; {}", self.distribution.advice()));
        };
        let Some(prefix) = root_prefix() else {
            return Err(format!(
                "{why} and there is neither root nor a sudo without a password; {}",
                self.distribution.advice()
            ));
        };
        eprintln!(
            "xtask: {why}; installing mesa-vulkan-drivers (Mesa's drivers, one of them in software) and libvulkan1"
        );
        if let Err(what) = run(as_root(prefix, "apt-get update")) {
            eprintln!("xtask: {what}; trying with the lists that are there");
        }
        run(as_root(prefix, command)).map_err(|what| format!("{what}; {}", self.distribution.advice()))
    }
}

fn this_manifests() -> Vec<PathBuf> {
    manifests(&driver_places(|name| std::env::var_os(name)))
}

/// Whether a manifest is that of lavapipe, Mesa's driver that needs no device.
fn is_software(manifest: &Path) -> bool {
    manifest.file_name().is_some_and(|n| n.to_string_lossy().starts_with("lvp"))
}

/// What makes a command run as root: nothing for root, sudo where it asks for no password.
fn root_prefix() -> Option<&'static [&'static str]> {
    let id = Command::new("id").arg("-u").output();
    if id.is_ok_and(|o| o.stdout.trim_ascii() == b"0") {
        return Some(&[]);
    }
    let sudo = Command::new("sudo").args(["-n", "true"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    sudo.is_ok_and(|s| s.success()).then_some(&["sudo", "-n"])
}

/// A command line split at spaces, which must not ask questions.
fn as_root(prefix: &[&str], line: &str) -> Command {
    let quiet = ["env", "DEBIAN_FRONTEND=noninteractive"];
    let mut words = prefix.iter().copied().chain(quiet).chain(line.split(' '));
    let mut command = Command::new(words.next().unwrap_or("env"));
    command.args(words);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_told_by_its_id_then_by_what_it_is_like() {
        let cases = [
            ("PRETTY_NAME=\"Debian GNU/Linux 13\"\nID=debian\n", Distribution::Debian),
            ("ID=ubuntu\nID_LIKE=debian\n", Distribution::Debian),
            ("NAME=\"Linux Mint\"\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Distribution::Debian),
            ("VERSION_ID=42\nID=fedora\n", Distribution::Fedora),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", Distribution::Fedora),
            ("ID=arch\n", Distribution::Arch),
            ("ID=manjaro\nID_LIKE=arch\n", Distribution::Arch),
            ("ID='opensuse-tumbleweed'\nID_LIKE='opensuse suse'\n", Distribution::Suse),
            ("ID=alpine\n", Distribution::Alpine),
            ("ID=nixos\n", Distribution::Other),
            ("", Distribution::Other),
        ];
        for (text, expected) in cases {
            assert_eq!(Distribution::of(text), expected, "{text}");
        }
    }

    #[test]
    fn advice_is_the_exact_command_where_there_is_one() {
        assert_eq!(
            Distribution::Fedora.advice(),
            "install one with\n    sudo dnf install -y mesa-vulkan-drivers vulkan-loader"
        );
        assert_eq!(
            Distribution::Arch.advice(),
            "install one with\n    sudo pacman -S --needed vulkan-swrast vulkan-icd-loader"
        );
        assert_eq!(
            Distribution::Suse.advice(),
            "install one with\n    sudo zypper install -y libvulkan_lvp libvulkan1"
        );
        assert_eq!(
            Distribution::Alpine.advice(),
            "install one with\n    sudo apk add mesa-vulkan-swrast vulkan-loader"
        );
        assert!(Distribution::Other.advice().contains("your system's tools"));
    }

    #[test]
    fn a_variable_that_names_drivers_is_the_only_place() {
        let listed = std::env::join_paths(["/a/x.json", "/b"]).unwrap();
        let places = driver_places(|n| (n == "VK_ICD_FILENAMES").then(|| listed.clone()));
        assert_eq!(places, [PathBuf::from("/a/x.json"), PathBuf::from("/b")]);
        let both = |n: &str| match n {
            "VK_DRIVER_FILES" => Some("/new.json".into()),
            "VK_ICD_FILENAMES" => Some("/old.json".into()),
            _ => None,
        };
        assert_eq!(driver_places(both), [PathBuf::from("/new.json")]);
    }

    #[test]
    fn without_one_the_usual_folders_are_read() {
        let places = driver_places(|n| match n {
            "HOME" => Some("/home/a".into()),
            "VK_DRIVER_FILES" => Some("".into()),
            _ => None,
        });
        for usual in [
            "/home/a/.local/share/vulkan/icd.d",
            "/etc/vulkan/icd.d",
            "/usr/local/share/vulkan/icd.d",
            "/usr/share/vulkan/icd.d",
        ] {
            assert!(places.contains(&usual.into()), "{usual}");
        }
    }

    #[test]
    fn commands_run_as_root_ask_nothing() {
        let command = as_root(&["sudo", "-n"], "apt-get update");
        assert_eq!(command.get_program(), "sudo");
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "update"]);
    }

    #[test]
    fn lavapipe_is_known_by_its_manifest() {
        assert!(is_software(Path::new("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json")));
        assert!(!is_software(Path::new("/usr/share/vulkan/icd.d/nvidia_icd.json")));
    }
}
