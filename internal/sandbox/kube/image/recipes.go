package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Names of the images, as manifests and the upstream tests call them.
const (
	PauseName   = "registry.k8s.io/pause:3.10.2"
	AgnhostName = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
	CoreDNSName = "registry.k8s.io/coredns/coredns:local"
	// DNSName is what upstream's tests of DNS look names up with, by way of glibc. Here it is
	// agnhost, whose programs are all of Debian.
	DNSName = "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0"
)

// agnhostFile is where agnhost is kept. Its number goes up with its recipe, since a file knows its
// ingredients only.
const agnhostFile = "agnhost-2"

// Kitchen makes the images that a cluster needs, and keeps them as files.
type Kitchen struct {
	// Dir is where the images are kept.
	Dir string
	// Programs is the directory of the programs of Kubernetes.
	Programs string
	// Source is the root of a checkout of Hawser; see parts.Source.
	Source string
	// Say gets a line of progress.
	Say func(format string, args ...any)
}

// Make makes the named images that are not there yet, or are older than what they are made of, and
// returns their files. Known names are pause, coredns and agnhost.
func (k *Kitchen) Make(ctx context.Context, names ...string) ([]string, error) {
	if err := os.MkdirAll(k.Dir, 0o755); err != nil {
		return nil, err
	}
	var files []string
	for _, name := range names {
		var recipe func(context.Context) (*Image, error)
		from, kept := filepath.Join(k.Programs, name), name
		switch name {
		case "pause":
			recipe, from = k.pause, filepath.Join(k.Source, "test/kube/pause/pause.c")
		case "coredns":
			recipe = k.coreDNS
		case "agnhost":
			recipe, kept = k.agnhost, agnhostFile
		default:
			return nil, fmt.Errorf("no recipe for an image %q", name)
		}
		file := filepath.Join(k.Dir, kept+".tar")
		files = append(files, file)
		if Fresh(file, from) {
			continue
		}
		if k.Source == "" {
			return nil, fmt.Errorf("the image %s is not in %s: it is made in a checkout of Hawser", name, k.Dir)
		}
		began := time.Now()
		m, err := recipe(ctx)
		if err == nil {
			err = m.WriteFile(file)
		}
		if err != nil {
			return nil, fmt.Errorf("make the image %s: %w", name, err)
		}
		k.Say("image %s made (%.1f s)", m.Names[0], time.Since(began).Seconds())
	}
	return files, nil
}

// Fresh reports whether file exists and none of what it was made from is newer. A source that is
// missing makes nothing older.
func Fresh(file string, from ...string) bool {
	made, err := os.Stat(file)
	if err != nil {
		return false
	}
	for _, f := range from {
		if info, err := os.Stat(f); err == nil && info.ModTime().After(made.ModTime()) {
			return false
		}
	}
	return true
}

func (k *Kitchen) pause(ctx context.Context) (*Image, error) {
	program := filepath.Join(k.Dir, "pause")
	cmd := exec.CommandContext(ctx, "gcc", "-Os", "-static", "-s", "-o", program, filepath.Join(k.Source, "test/kube/pause/pause.c"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	m := &Image{Names: []string{PauseName}, Entrypoint: []string{"/pause"}}
	m.Add("/pause", program)
	return m, nil
}

func (k *Kitchen) coreDNS(context.Context) (*Image, error) {
	m := &Image{Names: []string{CoreDNSName}, Entrypoint: []string{"/coredns"}}
	m.Add("/coredns", filepath.Join(k.Programs, "coredns"))
	m.Dir("/tmp", 0o1777)
	return m, nil
}

// unpacked are packages whose programs the upstream tests call in agnhost, with the libraries that
// these need. They are unpacked and not installed: nc of another package would become the
// machine's.
var unpacked = []string{
	"netcat-openbsd", "libbsd0", "libmd0", "iperf", "bind9-dnsutils", "bind9-host", "bind9-libs", "liblmdb0", "libuv1", "libmaxminddb0",
	"libprotobuf-c1", "libfstrm0", "libjson-c5", "libjemalloc2", "libnghttp2-14",
}

func (k *Kitchen) agnhost(ctx context.Context) (*Image, error) {
	kubernetes, err := k.moduleDir(ctx, "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	// The tests of this version of Kubernetes ask for this version of the image.
	version, err := os.ReadFile(filepath.Join(kubernetes, "test/images/agnhost/VERSION"))
	if err != nil {
		return nil, err
	}
	if want := AgnhostName[strings.LastIndexByte(AgnhostName, ':')+1:]; strings.TrimSpace(string(version)) != want {
		return nil, fmt.Errorf("agnhost is of version %s, the image is named after %s", version, want)
	}
	root, err := k.unpack(ctx, unpacked)
	if err != nil {
		return nil, err
	}
	m := &Image{Names: []string{AgnhostName, DNSName}, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}
	m.Add("/agnhost", filepath.Join(k.Programs, "agnhost"))
	m.Link("/agnhost-2", "agnhost")
	for _, f := range []string{"localhost.crt", "localhost.key"} {
		m.Add("/"+f, filepath.Join(kubernetes, "test/images/agnhost/porter", f))
	}
	// The shell is bash: busybox's prefers its own applets to programs in PATH, and its nc knows no
	// UDP.
	for dst, name := range map[string]string{"/bin/bash": "bash", "/bin/busybox": "busybox", "/usr/bin/curl": "curl", "/usr/bin/ss": "ss", "/usr/bin/ipcs": "ipcs",
		"/usr/bin/getent": "getent"} {
		program, err := exec.LookPath(name)
		if err == nil {
			program, err = filepath.EvalSymlinks(program)
		}
		if err == nil {
			err = m.AddProgram(dst, program)
		}
		if err != nil {
			return nil, err
		}
	}
	m.Link("/bin/sh", "bash")
	for dst, program := range map[string]string{
		"/usr/bin/nc": "bin/nc.openbsd", "/usr/bin/dig": "usr/bin/dig", "/usr/bin/nslookup": "usr/bin/nslookup", "/usr/bin/iperf": "usr/bin/iperf",
	} {
		path := filepath.Join(root, program)
		if _, err := os.Stat(path); err != nil {
			path = filepath.Join(root, "usr", program) // where a merged /usr has it
		}
		if err := m.AddProgram(dst, path, root); err != nil {
			return nil, err
		}
	}
	for applet := range strings.FieldsSeq(applets) {
		m.Link("/bin/"+applet, "busybox")
	}
	m.Dir("/uploads", 0o777)
	m.Dir("/tmp", 0o1777)
	m.Dir("/root", 0o700)
	m.Dir("/var/registry", 0o755)
	m.Text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\nuser-defined-in-image:x:1000:1000::/:/bin/sh\n")
	m.Text("/etc/group", "root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n")
	m.Text("/etc/nsswitch.conf", "hosts: files dns\n")
	return m, nil
}

const applets = `awk base64 basename cat chmod chown cp cut date dd df dirname echo env expr false find grep gzip head hostname id ifconfig ip kill ln ls md5sum
mkdir mktemp mount mv netstat ping ping6 printf ps pwd readlink realpath rm rmdir route sed seq sha256sum sleep sort stat sync tail tar tee telnet test
time timeout touch tr traceroute traceroute6 true umount uname uniq usleep vi wc wget whoami xargs`

// moduleDir returns where the Go command keeps the sources of a module that test/kube requires.
func (k *Kitchen) moduleDir(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir = filepath.Join(k.Source, "test/kube")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("sources of %s: %w: %s", module, err, out)
	}
	cmd = exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir = filepath.Join(k.Source, "test/kube")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("sources of %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// unpack downloads Debian packages and unpacks them into one directory below Dir, once.
func (k *Kitchen) unpack(ctx context.Context, packages []string) (root string, err error) {
	root = filepath.Join(k.Dir, "debian")
	done := filepath.Join(root, ".unpacked")
	if said, err := os.ReadFile(done); err == nil && string(said) == strings.Join(packages, " ") {
		return root, nil
	}
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("%w: programs for the image come from the Debian packages %s", err, strings.Join(packages, " "))
		}
	}
	downloads := filepath.Join(k.Dir, "downloads")
	if err := errors.Join(os.RemoveAll(root), os.RemoveAll(downloads), os.MkdirAll(root, 0o755), os.MkdirAll(downloads, 0o755)); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"download", "-q", "-o", "APT::Sandbox::User=root"}, packages...)...)
	cmd.Dir = downloads
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("apt-get download (perhaps `apt-get update` is due): %w: %s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(downloads, "*.deb"))
	if err != nil {
		return "", err
	}
	for _, f := range files {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", f, root).CombinedOutput(); err != nil {
			return "", fmt.Errorf("unpack %s: %w: %s", filepath.Base(f), err, out)
		}
	}
	return root, errors.Join(os.RemoveAll(downloads), os.WriteFile(done, []byte(strings.Join(packages, " ")), 0o644))
}
