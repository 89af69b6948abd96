package deletequeue

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func add(t *testing.T, dir string, entries ...Entry) {
	t.Helper()
	w, err := Hold(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, e := range entries {
		if err := w.Add(e); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWriteAndReplay(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deleteQueue")
	one := Entry{EndpointID: "cni-attachment-id:abc:eth0"}
	two := Entry{ContainerID: "def"}
	add(t, dir, one, two, one)
	if waiting, err := pending(dir); len(waiting) != 2 || err != nil {
		t.Fatalf("pending %v, %v", waiting, err)
	}
	// The file's name and content are an interface to other agents.
	name := fmt.Sprintf("%x.delete", sha256.Sum256([]byte(one.EndpointID)))
	if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != one.EndpointID {
		t.Errorf("file %s holds %q, %v", name, b, err)
	}
	os.WriteFile(filepath.Join(dir, "x"+suffix+tmpInfix+"1"), []byte("half"), 0o600)
	os.WriteFile(filepath.Join(dir, "bad"+suffix), []byte("{"), 0o600)

	// The first replay fails for one of them, which stays.
	boom := errors.New("boom")
	ready := false
	n, err := Replay(t.Context(), dir, func(_ context.Context, e Entry) error {
		if ready {
			t.Error("ready before the replay ended")
		}
		if e == one {
			return boom
		}
		return nil
	}, func() { ready = true })
	if n != 1 || !errors.Is(err, boom) || !ready {
		t.Errorf("replayed %d, %v, ready %v", n, err, ready)
	}
	var got []Entry
	n, err = Replay(t.Context(), dir, func(_ context.Context, e Entry) error { got = append(got, e); return nil }, nil)
	if n != 1 || err != nil {
		t.Errorf("replayed %d, %v", n, err)
	}
	if diff := cmp.Diff([]Entry{one}, got); diff != "" {
		t.Error(diff)
	}
	left, _ := os.ReadDir(dir)
	if len(left) != 1 || left[0].Name() != lockName {
		t.Errorf("left over: %v", left)
	}
}

// TestDrop: of what waits only what is named is dropped, whether or not there is a queue.
func TestDrop(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deleteQueue")
	one, two, three := Entry{EndpointID: "cni-attachment-id:abc:eth0"}, Entry{ContainerID: "abc"}, Entry{EndpointID: "cni-attachment-id:def:eth0"}
	if err := Drop(dir, one, Entry{}); err != nil {
		t.Error(err)
	}
	add(t, dir, one, two, three)
	for range 2 {
		if err := Drop(dir, one, two); err != nil {
			t.Error(err)
		}
	}
	var got []Entry
	if _, err := Replay(t.Context(), dir, func(_ context.Context, e Entry) error { got = append(got, e); return nil }, nil); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]Entry{three}, got); diff != "" {
		t.Error(diff)
	}
}

func TestFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var entries []Entry
	for i := range MaxFiles {
		entries = append(entries, Entry{EndpointID: fmt.Sprintf("cni-attachment-id:%d:eth0", i)})
	}
	add(t, dir, entries...)
	w, err := Hold(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Add(entries[0]); err != nil {
		t.Errorf("one that is queued already: %v", err)
	}
	if err := w.Add(Entry{EndpointID: "one-more"}); !errors.Is(err, ErrFull) {
		t.Errorf("error %v, want ErrFull", err)
	}
}

func TestLocking(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, err := Hold(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Hold(t.Context(), dir)
	if err != nil {
		t.Fatalf("two plugins hinder each other: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Replay(short, dir, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the agent did not wait for the plugins: %v", err)
	}
	if err := a.Add(Entry{EndpointID: "x:y"}); err != nil {
		t.Fatal(err)
	}
	a.Close()
	b.Close()
	_, err = Replay(t.Context(), dir, func(context.Context, Entry) error {
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if w, err := Hold(short, dir); err == nil {
			w.Close()
			t.Error("a plugin got the lock during the replay")
		}
		return nil
	}, nil)
	if err != nil {
		t.Error(err)
	}
}

func TestAddRefuses(t *testing.T) {
	t.Parallel()
	w, err := Hold(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, e := range []Entry{{}, {EndpointID: "a", ContainerID: "b"}, {EndpointID: "{}"}, {EndpointID: "a\nb"}, {EndpointID: " a"}} {
		if err := w.Add(e); err == nil {
			t.Errorf("no error for %+v", e)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"cni-attachment-id:a:eth0", `{"container-id":"x"}`, "{", "", "a\x00b"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		e, err := parse(content)
		if err != nil {
			return
		}
		if (e.EndpointID == "") == (e.ContainerID == "") {
			t.Fatalf("%q parsed to %+v", content, e)
		}
		if enc, err := e.encode(); err == nil {
			back, err := parse(enc)
			if err != nil || back != e {
				t.Fatalf("%+v does not survive writing: %+v, %v", e, back, err)
			}
		}
	})
}
