package testenv

import (
	"errors"
	"io"
	"net"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestNetNSIsApartAndGoes(t *testing.T) {
	RequireRoot(t)
	before, err := MachineState()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("inside", func(t *testing.T) {
		CheckLeaks(t)
		a, b := NewNetNS(t), NewNetNS(t)
		Connect(t, a, "eth0", []string{"192.0.2.1/24", "2001:db8::1/64"}, b, "eth0", []string{"192.0.2.2/24", "2001:db8::2/64"})
		if got := a.LinkNames(t); !slices.Contains(got, "eth0") || !slices.Contains(got, "lo") {
			t.Fatalf("links %v, want lo and eth0", got)
		}
		for _, addr := range []string{"192.0.2.2:7", "[2001:db8::2]:7"} {
			var l net.Listener
			b.Must(t, func() (err error) { l, err = net.Listen("tcp", addr); return err })
			var c net.Conn
			a.Must(t, func() (err error) { c, err = net.DialTimeout("tcp", addr, 5*time.Second); return err })
			s, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, "hello"); err != nil {
				t.Fatal(err)
			}
			c.Close()
			if got, _ := io.ReadAll(s); string(got) != "hello" {
				t.Fatalf("got %q through the pair", got)
			}
			s.Close()
			l.Close()
		}
		// A process started inside belongs to the namespace.
		var out []byte
		a.Must(t, func() (err error) { out, err = exec.Command("cat", "/proc/net/dev").Output(); return err })
		if !strings.Contains(string(out), "eth0") {
			t.Fatalf("child does not see eth0:\n%s", out)
		}
	})
	after, err := MachineState()
	if err != nil {
		t.Fatal(err)
	}
	if left := extra(before, after); len(left) > 0 {
		t.Fatalf("left behind: %v", left)
	}
}

func TestDoReturnsErrorAndSurvivesGoexit(t *testing.T) {
	n := NewNetNS(t)
	want := errors.New("no")
	if err := n.Do(func() error { return want }); !errors.Is(err, want) {
		t.Fatalf("got %v", err)
	}
	if err := n.Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Fatal("no error although the function did not return")
	}
}

func TestExtraCountsRepeats(t *testing.T) {
	got := extra([]string{"a", "b"}, []string{"a", "a", "b", "c"})
	if !slices.Equal(got, []string{"a", "c"}) {
		t.Fatalf("got %v", got)
	}
}
