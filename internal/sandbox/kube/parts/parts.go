// Package parts knows the programs that a Kubernetes cluster on one machine is made of, where they
// are kept, and how they are built.
//
// They are built once from the modules below test/kube of a checkout, which pin every version, and
// kept in a cache directory that is named after the version of Kubernetes. Several processes may
// build at the same time: they wait for each other. A program appears in the directory only when it
// is whole.
//
// The package keeps no state. Builder.Build starts one goroutine while a program is compiled and
// waits for it.
package parts

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Version is the version of Kubernetes.
const Version = "v1.36.3"

// EnvDir names the environment variable that overrides where the programs are kept.
const EnvDir = "HAWSER_KUBE"

const modulePath = "github.com/hawser-net/hawser"

// Part is one program.
type Part struct {
	// Name is the program's file name.
	Name string
	// module is the directory of the module that builds it, below the root of a checkout.
	module string
	// pkg is the package to build, as seen from there.
	pkg string
	// from is the module whose version decides whether a program that is there is the right one.
	from string
	// flags are further linker flags.
	flags string
	// test says that it is a package's test program.
	test bool
	// typical is how long it takes on two cores after those before it in the list.
	typical time.Duration
}

// All returns every part, those that many others share code with first.
func All() []Part {
	kube := func(name, pkg string, typical time.Duration) Part {
		return Part{Name: name, module: "test/kube", pkg: "k8s.io/kubernetes/" + pkg, from: "k8s.io/kubernetes", flags: kubeVersion(), typical: typical}
	}
	containerd := func(name string, typical time.Duration) Part {
		const module = "github.com/containerd/containerd/v2"
		return Part{Name: name, module: "test/kube/containerd", pkg: module + "/cmd/" + name, from: module, typical: typical}
	}
	suite := kube("e2e.test", "test/e2e", 4*time.Minute)
	suite.test = true
	return []Part{
		kube("kube-apiserver", "cmd/kube-apiserver", 205*time.Second),
		kube("kubectl", "cmd/kubectl", 30*time.Second),
		kube("kube-controller-manager", "cmd/kube-controller-manager", 59*time.Second),
		kube("kube-scheduler", "cmd/kube-scheduler", 4*time.Second),
		kube("kubelet", "cmd/kubelet", 15*time.Second),
		kube("kube-proxy", "cmd/kube-proxy", 7*time.Second),
		kube("agnhost", "test/images/agnhost", 7*time.Second),
		containerd("containerd", 2*time.Minute),
		containerd("containerd-shim-runc-v2", 3*time.Second),
		containerd("ctr", 5*time.Second),
		{Name: "coredns", module: "test/kube/coredns", pkg: ".", from: "github.com/coredns/coredns", typical: time.Minute},
		{Name: "ginkgo", module: "test/kube", pkg: "github.com/onsi/ginkgo/v2/ginkgo", from: "github.com/onsi/ginkgo/v2", typical: 3 * time.Second},
		suite,
	}
}

// ControlPlane names what an API server with its controllers needs besides etcd.
func ControlPlane() []string {
	return []string{"kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler"}
}

// Node names what a node runs.
func Node() []string {
	return []string{"kubelet", "kube-proxy", "containerd", "containerd-shim-runc-v2", "ctr", "agnhost", "coredns"}
}

// Suite names what the upstream tests need.
func Suite() []string { return []string{"ginkgo", "e2e.test"} }

// kubeVersion is what Kubernetes' own build stamps into its programs. Without it they say
// v0.0.0-master, and clients refuse features.
func kubeVersion() string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(Version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	var flags []string
	for _, module := range []string{"component-base", "client-go"} {
		for _, kv := range [][2]string{{"gitVersion", Version}, {"gitMajor", major}, {"gitMinor", minor}, {"gitTreeState", "clean"}} {
			flags = append(flags, fmt.Sprintf("-X k8s.io/%s/version.%s=%s", module, kv[0], kv[1]))
		}
	}
	return strings.Join(flags, " ")
}

// find returns the parts of these names in the order of All; an unknown name is an error.
func find(names []string) ([]Part, error) {
	all := All()
	for _, name := range names {
		if !slices.ContainsFunc(all, func(p Part) bool { return p.Name == name }) {
			var known []string
			for _, p := range all {
				known = append(known, p.Name)
			}
			return nil, fmt.Errorf("no program %q: there are %s", name, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(p Part) bool { return !slices.Contains(names, p.Name) }), nil
}

// Dir returns the directory of the programs: what HAWSER_KUBE names, or one below the user's cache.
func Dir() (string, error) {
	if dir := os.Getenv(EnvDir); dir != "" {
		return filepath.Abs(dir)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep the programs of Kubernetes: %w; name a directory with %s", err, EnvDir)
	}
	return filepath.Join(cache, "hawser", "kube", Version), nil
}

// Source returns the root of the checkout that one of the places is in, or below which it is: the
// first that has one. What is missing is said in the error.
func Source(places ...string) (string, error) {
	for _, place := range places {
		for dir := place; filepath.IsAbs(dir); dir = filepath.Dir(dir) {
			data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			if err == nil && strings.HasPrefix(string(data), "module "+modulePath+"\n") {
				if _, err := os.Stat(filepath.Join(dir, "test", "kube", "go.mod")); err == nil {
					return dir, nil
				}
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New("no checkout of Hawser here: programs of Kubernetes are built from its test/kube, so run this from a checkout")
}

// state reports whether the program in dir is there and of the version that the checkout at root
// wants; root may be empty if there is none.
func (p Part) state(dir, root string) (ok bool, why string) {
	path := filepath.Join(dir, p.Name)
	if _, err := os.Stat(path); err != nil {
		return false, "is missing"
	}
	if root == "" {
		return true, ""
	}
	want, err := required(filepath.Join(root, p.module, "go.mod"), p.from)
	if err != nil {
		return true, ""
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return false, "is not readable"
	}
	have := ""
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == p.from {
			have = m.Version
		}
	}
	if have != want {
		return false, fmt.Sprintf("is of %s %s, wanted is %s", p.from, have, want)
	}
	return true, ""
}

// required returns the version that a go.mod requires of a module.
func required(file, module string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(f) >= 2 && f[0] == module && strings.HasPrefix(f[1], "v") {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("%s requires no %s", file, module)
}
