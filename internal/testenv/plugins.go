package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// IPAMPlugin builds an IPAM plugin of the CNI project, such as host-local, of the version that the
// module test/cni pins, and returns the directory that it is in. The next build is quick: the
// toolchain keeps what it compiled.
func IPAMPlugin(t testing.TB, name string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), "github.com/containernetworking/plugins/plugins/ipam/"+name)
	cmd.Dir = filepath.Join(Sources(t), "test", "cni")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the IPAM plugin %s: %v\n%s", name, err, out)
	}
	return dir
}

// hostile is an IPAM plugin that misbehaves as $HOSTILE says, writes down how it was called, and
// otherwise gives the addresses of $HOSTILE_IPS, which are JSON.
const hostile = `#!/bin/sh
cat >/dev/null
echo "$CNI_COMMAND $CNI_CONTAINERID" >> "$HOSTILE_LOG"
case "$CNI_COMMAND $HOSTILE" in
"ADD garbage") echo 'no JSON' ;;
"ADD silent") ;;
"ADD empty") echo '{"cniVersion":"1.1.0"}' ;;
"ADD flood") head -c 3000000 /dev/zero ;;
"ADD hang") sleep 1000 & wait ;;
"ADD fail") echo '{"code":11,"msg":"out of addresses","details":"range exhausted"}'; exit 1 ;;
"ADD die") kill -9 $$ ;;
"DEL fail-del") echo '{"code":11,"msg":"keeps","details":"the address"}'; exit 1 ;;
ADD*) printf '{"cniVersion":"1.1.0","ips":[%s],"dns":{"nameservers":["192.0.2.53"]}}' "$HOSTILE_IPS" ;;
esac
`

// HostileIPAM writes an IPAM plugin of the name hostile that misbehaves as its environment says
// (see the script), and returns the directory that it is in.
func HostileIPAM(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hostile"), []byte(hostile), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Sources returns the root of the sources that the test belongs to, by the directory that it runs
// in: the compiler does not say, as tests are built with -trimpath.
func Sources(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("the test runs outside of the sources")
		}
	}
}
