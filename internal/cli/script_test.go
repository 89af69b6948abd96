package cli

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// TestScripts runs testdata/*.txtar. Each script has an agent and a key-value store of its own and
// the commands
//
//	hawser ARG...     runs a command line in this process; it must succeed (! hawser: must fail)
//	code N            checks the exit code of the last command line
//	terminal          makes the standard output of what follows a terminal
//	agent fail|stop   makes the agent unhealthy or puts it out of reach
//	operator CODE FILE   has an operator at $OPERATOR answer with the code and the file
//
// HAWSER_UPDATE_SCRIPTS=1 rewrites the expected output. Commit such a change only when its cause
// is understood and wanted.
func TestScripts(t *testing.T) {
	t.Parallel()
	type state struct {
		agent    *fakeAgent
		store    *kvstore.Memory
		terminal bool
		code     int
	}
	of := func(ts *testscript.TestScript) *state { return ts.Value("state").(*state) }
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("HAWSER_UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			st := &state{agent: newFakeAgent(), store: kvstore.NewMemory()}
			env.Values["state"] = st
			env.Setenv("CILIUM_SOCK", st.agent.serve(env.T().(testing.TB)))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"hawser": func(ts *testscript.TestScript, neg bool, args []string) {
				st := of(ts)
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				st.code = Run(ctx, Config{
					Version:  "1.2.3",
					Stdout:   ts.Stdout(),
					Stderr:   ts.Stderr(),
					Getenv:   ts.Getenv,
					Terminal: st.terminal, Sandboxes: noSandboxes{},
					OpenKVStore: func(context.Context, string, map[string]string) (kvstore.Backend, error) {
						return st.store.Client(), nil
					},
				}, args)
				if neg != (st.code != exitcode.OK) {
					ts.Fatalf("exit code %d", st.code)
				}
			},
			"code": func(ts *testscript.TestScript, _ bool, args []string) {
				if want, err := strconv.Atoi(args[0]); err != nil || of(ts).code != want {
					ts.Fatalf("exit code is %d, want %s", of(ts).code, args[0])
				}
			},
			"terminal": func(ts *testscript.TestScript, _ bool, _ []string) { of(ts).terminal = true },
			"operator": func(ts *testscript.TestScript, _ bool, args []string) {
				code, err := strconv.Atoi(args[0])
				ts.Check(err)
				body := ts.ReadFile(args[1])
				srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/v1/status" {
						http.NotFound(w, r)
						return
					}
					w.WriteHeader(code)
					_, _ = io.WriteString(w, body)
				}))
				ts.Defer(srv.Close)
				ts.Setenv("OPERATOR", srv.Listener.Addr().String())
			},
			"agent": func(ts *testscript.TestScript, _ bool, args []string) {
				switch args[0] {
				case "fail":
					of(ts).agent.failing = true
				case "mesh":
					of(ts).agent.mesh = rest.ClusterMeshStatus{NumGlobalServices: 2, Clusters: []rest.RemoteCluster{
						{Name: "east", Connected: true, Ready: true, NumNodes: 2, NumIdentities: 5, NumEndpoints: 40, NumSharedServices: 3,
							Config: rest.RemoteClusterConfig{Retrieved: true, ClusterID: 2}},
						{Name: "west", NumRefused: 1, LastError: "the store has no description"},
					}}
				case "stop":
					ts.Setenv("CILIUM_SOCK", filepath.Join(ts.Getenv("WORK"), "absent.sock"))
				}
			},
		},
	})
}

// noSandboxes is a machine without sandboxes.
type noSandboxes struct{}

func (noSandboxes) Kubeconfig(string) (path string, running bool, err error) { return "", false, nil }
func (noSandboxes) Link(string, string) error                                { return nil }
func (noSandboxes) Unlink(string, string) error                              { return nil }
