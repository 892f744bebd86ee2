//! The examples for build systems: each plans when something changed, and only then.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{assert_success, root};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ckpt-opt");

/// A folder with a training graph, and costs of its nodes.
struct Project(tempfile::TempDir);

impl Project {
    fn new() -> Project {
        let project = Project(tempfile::tempdir().expect("a temporary folder"));
        let model = root().join("testdata/models/triplet.onnx");
        fs::copy(model, project.path("model.onnx")).expect("a copy");
        project.change_costs(1.0);
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("a text").to_owned()
    }

    fn change_costs(&self, time_us: f64) {
        let costs = format!(r#"{{"nodes": {{"/": {{"time_us": {time_us:?}}}}}}}"#);
        fs::write(self.path("costs.json"), costs).expect("a file");
    }

    /// Builds three times: from nothing, without a change, and after the costs have changed. Only the first and the last
    /// write the file.
    fn builds_when_needed(&self, written: &Path, build: impl Fn() -> Output) {
        let modified = || {
            fs::metadata(written)
                .and_then(|data| data.modified())
                .expect("a written file")
        };
        assert_success(&build());
        let first = modified();
        assert_success(&build());
        assert_eq!(modified(), first);
        // Some file systems count in seconds.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        self.change_costs(2.0);
        assert_success(&build());
        assert!(modified() > first);
    }
}

#[test]
fn make_plans_again_when_a_file_has_changed() {
    let project = Project::new();
    let out = project.path("small.onnx");
    project.builds_when_needed(&out, || {
        let mut make = Command::new("make");
        make.args(["-C", "examples/make"]).current_dir(root());
        make.arg(format!("CKPT_OPT={PROGRAM}"))
            .arg(format!("MODEL={}", project.text("model.onnx")))
            .arg(format!("OUT={}", out.display()))
            .arg(format!(
                "DIMS=--dim batch=64 --costs {}",
                project.text("costs.json")
            ));
        make.output().expect("make starts")
    });
}

#[test]
fn cmake_plans_again_when_a_file_has_changed() {
    let project = Project::new();
    let mut find = Command::new("sh");
    let found = find.args(["tools/setup.sh", "cmake"]).current_dir(root());
    let found = found.output().expect("sh starts");
    assert_success(&found);
    let cmake = String::from_utf8(found.stdout).expect("a path");
    let build = project.text("build");
    let mut configure = Command::new(cmake.trim());
    configure.args(["-S", "examples/cmake", "-B", &build]);
    configure.args(["-D", &format!("CKPT_OPT={PROGRAM}")]);
    configure.args(["-D", &format!("MODEL={}", project.text("model.onnx"))]);
    let dims = format!("DIMS=--dim=batch=64;--costs={}", project.text("costs.json"));
    configure.args(["-D", &dims]).current_dir(root());
    assert_success(&configure.output().expect("cmake starts"));
    let out = project.path("build/small.onnx");
    project.builds_when_needed(&out, || {
        let mut cmake = Command::new(cmake.trim());
        cmake.args(["--build", &build]);
        cmake.output().expect("cmake starts")
    });
}

#[test]
fn the_job_of_a_ci_fails_where_a_graph_stops_fitting() {
    let project = Project::new();
    let job = |budget: &str| {
        let mut job = Command::new("sh");
        job.arg("examples/ci/fits.sh")
            .arg(project.path("model.onnx"))
            .args([budget, "--dim", "batch=64"])
            .env("CKPT_OPT", PROGRAM)
            .current_dir(root());
        job.output().expect("sh starts")
    };
    assert_success(&job("fixed+60%"));
    let refused = job("fixed+1%");
    assert_eq!(refused.status.code(), Some(3));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("no longer fits fixed+1%"), "{said}");
}
