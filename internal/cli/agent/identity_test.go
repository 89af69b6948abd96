package agent

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

func TestIdentityListFromTheStore(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	mem := kvstore.NewMemory()
	writer := mem.Client()
	defer writer.Close()
	const base = storekeys.IdentitiesPrefix
	web, db := "k8s:app=web;k8s:io.kubernetes.pod.namespace=default;", "k8s:app=db;k8s:path=a/b;"
	for k, v := range map[string]string{
		"/id/300": web, "/id/4000": db, "/id/5000": "nonsense", "/id/x": "left out",
		"/value/" + web + "/10.0.0.1": "300", "/value/" + web + "/10.0.0.2": "300", "/value/" + web + "/10.0.0.3": "301",
		"/value/" + db + "/fd00::1": "4000", "/value/stray": "1",
	} {
		if err := kvstore.Put(ctx, writer, base+k, []byte(v), kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		a := &command.App{Getenv: func(string) string { return "" }}
		open := func(context.Context, string, map[string]string) (kvstore.Backend, error) { return mem.Client(), nil }
		root := command.Root(a, &out, &errs, "", "", IdentityCommand(a, open))
		code := command.Run(ctx, root, append([]string{"identity", "list"}, args...))
		return code, out.String(), errs.String()
	}
	code, out, errs := run("--kvstore")
	if code != exitcode.OK {
		t.Fatalf("code %d: %s", code, errs)
	}
	var lines []string
	for _, l := range strings.Split(strings.TrimSpace(out), "\n") {
		lines = append(lines, strings.Join(strings.Fields(l), " "))
	}
	want := []string{
		"ID LABELS NODES",
		"300 k8s:app=web 2, and 10.0.0.3=301", "k8s:io.kubernetes.pod.namespace=default",
		"4000 k8s:app=db 1", "k8s:path=a/b",
		"5000 nonsense 0",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	if _, out, _ := run("--kvstore", "k8s:path=a/b", "k8s:app=db", "-o", "jsonpath={[0].id} {[0].nodes[0]}"); out != "4000 fd00::1\n" {
		t.Errorf("the identity of some labels: %q", out)
	}
	for _, args := range [][]string{{"--kvstore", "--endpoints"}, {"--kvstore-opt", "etcd.qps=1"}} {
		if code, _, _ := run(args...); code != exitcode.Usage {
			t.Errorf("%q: code %d, want %d", args, code, exitcode.Usage)
		}
	}
}
