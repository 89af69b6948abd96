package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The sandbox runs its own program for etcd and the pods' servers. In tests that is the test
// binary, which therefore understands the same first argument as the product.
const helper = "sandbox"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == helper {
		cmd := NewCommand()
		cmd.SetArgs(os.Args[2:])
		if err := cmd.ExecuteContext(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The memory of programs is measured: they are to collect it as they do for users.
	os.Unsetenv("GOGC")
	os.Exit(m.Run())
}

// testConfig is a sandbox in a short directory of its own that is gone after the test.
func testConfig(t *testing.T) Config {
	t.Helper()
	root, err := os.MkdirTemp("", "hawser-sb-")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Defaults()
	cfg.Name = "test"
	cfg.Root = filepath.Join(root, "sandbox")
	cfg.Self = []string{os.Args[0], helper}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Self[0] = exe
	t.Cleanup(func() {
		s, err := New(cfg, t.Output(), false)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if os.Geteuid() == 0 {
			err = s.Down(ctx)
		}
		if err := errors.Join(err, os.RemoveAll(root)); err != nil {
			t.Error(err)
		}
	})
	return cfg
}

func testSandbox(t *testing.T, cfg Config) *Sandbox {
	t.Helper()
	s, err := New(cfg, t.Output(), false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
