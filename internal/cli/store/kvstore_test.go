package store

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// runLine runs a command line with a store, or with the real drivers if store is nil.
func runLine(ctx context.Context, store kvstore.Backend, stdout io.Writer, args ...string) (code int, stderr string) {
	var errs bytes.Buffer
	var open Opener
	if store != nil {
		open = func(context.Context, string, map[string]string) (kvstore.Backend, error) { return store, nil }
	}
	a := &command.App{Getenv: func(string) string { return "" }}
	root := command.Root(a, stdout, &errs, "", "", Command(open), MigrateCommand(a, open))
	return command.Run(ctx, root, args), errs.String()
}

// TestKVStoreWatch reads the stream as a program would while another client writes.
func TestKVStoreWatch(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	mem := kvstore.NewMemory()
	writer := mem.Client()
	defer writer.Close()
	put := func(key, value string) {
		t.Helper()
		if err := kvstore.Put(ctx, writer, key, []byte(value), kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	put("a/1", "one")
	put("a/12", "not asked for")
	r, w := io.Pipe()
	code := make(chan int, 1)
	watchCtx, stop := context.WithCancel(ctx)
	go func() {
		c, _ := runLine(watchCtx, mem.Client(), w, "kvstore", "watch", "a/1", "-o", "json")
		w.Close()
		code <- c
	}()
	type event struct {
		Event  string `json:"event"`
		Key    string `json:"key"`
		Value  string `json:"value"`
		Binary []byte `json:"value-base64"`
	}
	dec := json.NewDecoder(r)
	want := func(want event) {
		t.Helper()
		var got event
		if err := dec.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	}
	want(event{Event: "create", Key: "a/1", Value: "one"})
	want(event{Event: "synced"})
	put("a/1", "\xff")
	want(event{Event: "modify", Key: "a/1", Binary: []byte{0xff}})
	put("a/13", "not asked for")
	if err := kvstore.Delete(ctx, writer, "a/1"); err != nil {
		t.Fatal(err)
	}
	want(event{Event: "delete", Key: "a/1"})
	stop()
	if c := <-code; c != exitcode.OK {
		t.Errorf("an interrupted watch ends with %d", c)
	}
}

func TestKVStoreOnEtcd(t *testing.T) {
	t.Parallel()
	etcd := kvstoretest.StartEtcd(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	line := func(args ...string) (int, string, string) {
		var out bytes.Buffer
		code, errs := runLine(ctx, nil, &out, append([]string{"kvstore", "--kvstore-opt", "etcd.address=" + etcd.Endpoint()}, args...)...)
		return code, out.String(), errs
	}
	for _, tt := range []struct {
		args []string
		code int
		out  string
	}{
		{[]string{"set", "x/a", "1"}, exitcode.OK, ""},
		{[]string{"set", "x/b", "2"}, exitcode.OK, ""},
		{[]string{"get", "-r", "x/"}, exitcode.OK, "x/a => 1\nx/b => 2\n"},
		{[]string{"delete", "x/a"}, exitcode.OK, ""},
		{[]string{"get", "x/a"}, exitcode.NotFound, ""},
		{[]string{"get", "x/b", "-o", "jsonpath={.value}"}, exitcode.OK, "2\n"},
		{[]string{"get", "x/b", "--kvstore", "nonsense"}, exitcode.Usage, ""},
		{[]string{"get", "x/b", "--kvstore-opt", "nonsense=1"}, exitcode.Usage, ""},
	} {
		if code, out, errs := line(tt.args...); code != tt.code || out != tt.out {
			t.Errorf("%q: code %d, want %d; output %q, want %q; %s", tt.args, code, tt.code, out, tt.out, errs)
		}
	}
	etcd.Stop()
	code, _, errs := line("get", "x/b", "--timeout", "200ms")
	if code != exitcode.Unreachable || !strings.Contains(errs, "did not answer within 200ms") {
		t.Errorf("without etcd: code %d, %s", code, errs)
	}
}
