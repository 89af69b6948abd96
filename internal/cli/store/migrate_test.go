package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/admin/migration"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// TestMigrateIdentity runs the command as a person does, with a real API server.
func TestMigrateIdentity(t *testing.T) {
	t.Parallel()
	server := kubeapi.Start(t)
	server.DefineResources()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":%q,"insecure-skip-tls-verify":true}}],"users":[{"name":"u","user":{"token":%q}}]}`,
		server.Config.Host, server.Config.BearerToken)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	mem := kvstore.NewMemory()
	store := mem.Client()
	defer store.Close()
	for n := range 5 {
		if err := kvstore.Put(t.Context(), store, fmt.Sprint(storekeys.IdentitiesPrefix, "/id/", 300+n), fmt.Appendf(nil, "k8s:app=a%d;", n), kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (int, string, string) {
		t.Helper()
		var out bytes.Buffer
		code, stderr := runLine(context.Background(), mem.Client(), &out, append([]string{"migrate", "identity", "--kubeconfig", kubeconfig}, args...)...)
		return code, out.String(), stderr
	}
	for args, want := range map[string]string{"": "--to", "--to=etcd": "neither crd nor kvstore", "--to=crd --cluster-id=999": "--cluster-id"} {
		if code, _, stderr := run(strings.Fields(args)...); code != exitcode.Usage || !strings.Contains(stderr, want) {
			t.Errorf("%q: %d, %s", args, code, stderr)
		}
	}
	for args, want := range map[string]string{
		"--context=other": `"other" does not exist`, "--kubeconfig=" + kubeconfig + ".missing": "--kubeconfig: ", "--k8s-kubeconfig-path=x": "none of the others can be",
		"--k8s-api-server=http://127.0.0.1:1": "127.0.0.1:1: connect: connection refused",
	} {
		if code, _, stderr := run("--to=crd", args); code == exitcode.OK || !strings.Contains(stderr, want) {
			t.Errorf("%q: %d, %s", args, code, stderr)
		}
	}
	if code, out, stderr := run("--to=crd", "--dry-run"); code != exitcode.OK || !strings.Contains(out, "Missing:") || !strings.Contains(out, "5") {
		t.Errorf("dry run: %d, %s%s", code, out, stderr)
	}
	if code, _, _ := run("--to=crd", "--check"); code != exitcode.Failure {
		t.Errorf("a check of what is not complete: %d", code)
	}
	if code, out, stderr := run("--to=crd"); code != exitcode.OK || !strings.Contains(out, "all identities are in both places") {
		t.Errorf("copy: %d, %s%s", code, out, stderr)
	}
	// The file by the name that daemons have for it.
	var out bytes.Buffer
	code, stderr := runLine(t.Context(), mem.Client(), &out, "migrate", "identity", "--k8s-kubeconfig-path", kubeconfig, "--to=kvstore", "--check", "-o", "json")
	var r migration.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || code != exitcode.OK || r.Total != 5 || r.Same != 5 || !r.Complete {
		t.Errorf("check: %d, %s%s, %v", code, &out, stderr, err)
	}
}
