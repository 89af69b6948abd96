package etcd_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// TestUserAndPassword works on a store that lets only known users in: requests, watches and leases,
// before and after a restart of the store.
func TestUserAndPassword(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	raw := server.Client()
	ctx := timeout(t, time.Minute)
	for _, err := range []error{
		second(raw.RoleAdd(ctx, "agents")), second(raw.RoleGrantPermission(ctx, "agents", "test/", "test0", clientv3.PermissionType(clientv3.PermReadWrite))),
		second(raw.UserAdd(ctx, "root", "secret of root")), second(raw.UserGrantRole(ctx, "root", "root")),
		second(raw.UserAdd(ctx, "agent", "secret")), second(raw.UserGrantRole(ctx, "agent", "agents")),
		second(raw.AuthEnable(ctx)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	settings := func(password string) etcd.Config {
		path := filepath.Join(t.TempDir(), "etcd.yaml")
		text := fmt.Sprintf("endpoints: [%q]\nusername: agent\npassword: %q\n", server.Endpoint(), password)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := etcd.Defaults()
		cfg.File, cfg.QPS, cfg.HeartbeatKey = path, 0, "test/heartbeat" // another may not be read
		return cfg
	}
	c := open(t, settings("secret"))
	if err := kvstore.Put(ctx, c, "test/a", []byte("1"), kvstore.Leased); err != nil {
		t.Fatal(err)
	}
	events := c.Watch(ctx, "test/")
	if a, b := <-events, <-events; a.Kind != kvstore.EventCreate || b.Kind != kvstore.EventListDone {
		t.Fatalf("events %v, %v", a, b)
	}
	if err := kvstore.Put(ctx, c, "outside", nil, kvstore.Permanent); err == nil || !strings.Contains(err.Error(), "permission") {
		t.Errorf("a write outside of what is allowed: %v", err)
	}
	server.Stop()
	server.Start()
	for {
		err := kvstore.Put(ctx, c, "test/a", []byte("2"), kvstore.Leased)
		if err == nil {
			break
		} else if ctx.Err() != nil {
			t.Fatalf("after a restart of the store: %v", err)
		}
	}
	if ev := <-events; string(ev.Value) != "2" {
		t.Errorf("event after the restart: %+v", ev)
	}
	wrong := open(t, settings("guessed"))
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	if _, err := wrong.Get(short, "test/a"); err == nil {
		t.Error("let in with a wrong password")
	}
	if st := wrong.Status(); st.Healthy() || !strings.Contains(st.Message, "connecting") || strings.Contains(st.Message, "guessed") {
		t.Errorf("status with a wrong password: %+v", st)
	}
}

// TestPasswordRotated: a user and password that change in the store and in the settings file, in
// either order, are used without a new client: by requests, by watches under way and by new ones.
func TestPasswordRotated(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	raw := server.Client()
	ctx := timeout(t, 2*time.Minute)
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(second(raw.RoleAdd(ctx, "agents")), second(raw.RoleGrantPermission(ctx, "agents", "test/", "test0", clientv3.PermissionType(clientv3.PermReadWrite))),
		second(raw.UserAdd(ctx, "root", "secret of root")), second(raw.UserGrantRole(ctx, "root", "root")),
		second(raw.UserAdd(ctx, "agent", "first")), second(raw.UserGrantRole(ctx, "agent", "agents")),
		second(raw.UserAdd(ctx, "next", "third")), second(raw.UserGrantRole(ctx, "next", "agents")),
		second(raw.AuthEnable(ctx)))
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Endpoint()}, Username: "root", Password: "secret of root", DialTimeout: 5 * time.Second})
	must(err)
	defer root.Close()
	cfg := etcd.Defaults()
	cfg.File, cfg.QPS, cfg.HeartbeatKey = filepath.Join(t.TempDir(), "etcd.yaml"), 0, "test/heartbeat"
	settings := func(user, password string) {
		t.Helper()
		must(os.WriteFile(cfg.File, fmt.Appendf(nil, "endpoints: [%q]\nusername: %s\npassword: %q\n", server.Endpoint(), user, password), 0o600))
	}
	settings("agent", "first")
	c := open(t, cfg)
	old := c.Watch(ctx, "test/")
	if ev := <-old; ev.Kind != kvstore.EventListDone {
		t.Fatalf("first event %+v", ev)
	}
	// works writes a key, which the first watch and a new one must show.
	works := func(value string) {
		t.Helper()
		for {
			err := kvstore.Put(ctx, c, "test/"+value, []byte(value), kvstore.Leased)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("%s: %v", value, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		own, stop := context.WithCancel(ctx)
		defer stop()
		fresh := c.Watch(own, "test/"+value)
		if a, b := <-fresh, <-fresh; a.Kind != kvstore.EventCreate || b.Kind != kvstore.EventListDone {
			t.Fatalf("%s: a new watch showed %+v, %+v", value, a, b)
		}
		must(kvstore.Put(ctx, c, "test/"+value, []byte("again"), kvstore.Leased))
		if ev := <-fresh; string(ev.Value) != "again" {
			t.Fatalf("%s: a new watch showed %+v", value, ev)
		}
		for _, want := range []string{value, "again"} {
			if ev := <-old; string(ev.Value) != want {
				t.Fatalf("%s: the first watch showed %+v", value, ev)
			}
		}
	}
	works("first")
	settings("agent", "second") // before the store has it
	must(second(root.UserChangePassword(ctx, "agent", "second")))
	works("second")
	must(second(root.UserDelete(ctx, "agent"))) // before the file has another
	if err := kvstore.Put(ctx, c, "test/refused", nil, kvstore.Leased); err == nil || !strings.Contains(err.Error(), cfg.File) || strings.Contains(err.Error(), "second") {
		t.Errorf("a write by a user that is gone: %v", err)
	}
	settings("next", "third")
	works("third")
}

// TestUserAddedLater: a store begins to ask for users, and the settings file gets one, in either
// order. It is used without a new client, by requests and watches.
func TestUserAddedLater(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"the store", "the file"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			server := kvstoretest.StartEtcd(t)
			raw := server.Client()
			ctx := timeout(t, time.Minute)
			must := func(errs ...error) {
				t.Helper()
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
			}
			must(second(raw.RoleAdd(ctx, "agents")), second(raw.RoleGrantPermission(ctx, "agents", "test/", "test0", clientv3.PermissionType(clientv3.PermReadWrite))),
				second(raw.UserAdd(ctx, "root", "secret of root")), second(raw.UserGrantRole(ctx, "root", "root")),
				second(raw.UserAdd(ctx, "agent", "secret")), second(raw.UserGrantRole(ctx, "agent", "agents")))
			cfg := etcd.Defaults()
			cfg.File, cfg.QPS, cfg.HeartbeatKey = filepath.Join(t.TempDir(), "etcd.yaml"), 0, "test/heartbeat"
			settings := func(user string) {
				t.Helper()
				must(os.WriteFile(cfg.File, fmt.Appendf(nil, "endpoints: [%q]\n%s", server.Endpoint(), user), 0o600))
			}
			settings("")
			c := open(t, cfg)
			must(kvstore.Put(ctx, c, "test/a", []byte("1"), kvstore.Leased))
			old := c.Watch(ctx, "test/")
			if a, b := <-old, <-old; a.Kind != kvstore.EventCreate || b.Kind != kvstore.EventListDone {
				t.Fatalf("events %v, %v", a, b)
			}
			const user = "username: agent\npassword: secret\n"
			if first == "the file" {
				settings(user)
				must(kvstore.Put(ctx, c, "test/a", []byte("2"), kvstore.Leased), second(raw.AuthEnable(ctx)))
			} else {
				must(second(raw.AuthEnable(ctx)))
				began := time.Now()
				if err := kvstore.Put(ctx, c, "test/a", nil, kvstore.Leased); err == nil || !strings.Contains(err.Error(), cfg.File) || time.Since(began) > 5*time.Second {
					t.Errorf("a write without a user, after %s: %v", time.Since(began), err)
				}
				settings(user)
				must(kvstore.Put(ctx, c, "test/a", []byte("2"), kvstore.Leased))
			}
			must(kvstore.Put(ctx, c, "test/a", []byte("3"), kvstore.Leased))
			fresh := c.Watch(ctx, "test/a")
			if a, b := <-fresh, <-fresh; string(a.Value) != "3" || b.Kind != kvstore.EventListDone {
				t.Fatalf("a new watch showed %+v, %+v", a, b)
			}
			must(kvstore.Put(ctx, c, "test/a", []byte("4"), kvstore.Leased))
			if ev := <-fresh; string(ev.Value) != "4" {
				t.Errorf("a new watch showed %+v", ev)
			}
			for _, want := range []string{"2", "3", "4"} {
				if ev := <-old; string(ev.Value) != want {
					t.Errorf("the watch from before showed %+v, want %s", ev, want)
				}
			}
			settings("") // and it goes
			if kv, err := c.Get(ctx, "test/a"); err != nil || string(kv.Value) != "4" {
				t.Errorf("with the token of a user that is not in the file any more: %+v, %v", kv, err)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

// TestSettingsFileMayComeLater starts a client before its settings file is there.
func TestSettingsFileMayComeLater(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	cfg := etcd.Defaults()
	cfg.File = filepath.Join(t.TempDir(), "etcd.yaml")
	c := open(t, cfg)
	ctx := timeout(t, time.Minute)
	for c.Status().LastError == "" {
		if ctx.Err() != nil {
			t.Fatal("the missing file is not reported")
		}
		time.Sleep(time.Millisecond)
	}
	if err := os.WriteFile(cfg.File, []byte("endpoints: ["+server.Endpoint()+"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := kvstore.Put(ctx, c, "test/a", nil, kvstore.Permanent); err != nil {
		t.Fatal(err)
	}
}

func TestStatusCountsLeasesOfNow(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	c := open(t, config(server))
	ctx := timeout(t, time.Minute)
	for !c.Status().Healthy() {
		if ctx.Err() != nil {
			t.Fatalf("status: %+v", c.Status())
		}
		time.Sleep(time.Millisecond)
	}
	if m := c.Status().Message; !strings.Contains(m, "0 leases") {
		t.Errorf("at the start: %s", m)
	}
	for _, key := range []string{"a", "b"} {
		if err := kvstore.Put(ctx, c, "test/"+key, nil, kvstore.Leased); err != nil {
			t.Fatal(err)
		}
	}
	if m := c.Status().Message; m != "etcd: 1 of 1 endpoints answer, 1 leases with 2 keys, quorum" {
		t.Errorf("with two leased keys: %s", m)
	}
}

func TestStaleHeartbeat(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	cfg := config(server)
	cfg.HeartbeatStaleAfter = 300 * time.Millisecond
	c := open(t, cfg)
	ctx := timeout(t, time.Minute)
	c.Check(ctx)
	time.Sleep(2 * cfg.HeartbeatStaleAfter) // the subject: a store without an operator has nothing to miss, however long
	if c.Check(ctx); c.Status().State != kvstore.StateOK {
		t.Fatalf("without an operator: %+v", c.Status())
	}
	beat := func() { // until it shows: the machine may be slower than the limit
		for ok := false; !ok; ok = c.Status().State == kvstore.StateOK {
			if err := kvstore.Put(ctx, c, cfg.HeartbeatKey, []byte(time.Now().Format(time.RFC3339)), kvstore.Permanent); err != nil {
				t.Fatal(err)
			}
			c.Check(ctx)
		}
	}
	beat()
	for c.Status().State == kvstore.StateOK {
		if ctx.Err() != nil {
			t.Fatal("a heartbeat that stands still is not noticed")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if st := c.Status(); st.Healthy() || st.QuorumFailures != 0 || !strings.Contains(st.Message, "heartbeat") {
		t.Errorf("with a stale heartbeat: %+v", st)
	}
	beat()
}

// TestInflightLimit asks a store that does not answer: no more requests than allowed may be under
// way, and one that waits ends with its context.
func TestInflightLimit(t *testing.T) {
	server := kvstoretest.StartEtcd(t)
	cfg := config(server)
	cfg.MaxInflight = 2
	c := open(t, cfg)
	ctx := timeout(t, time.Minute)
	if err := kvstore.Put(ctx, c, "test/a", nil, kvstore.Permanent); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	short, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var waiting atomic.Int32
	var wg sync.WaitGroup
	for range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := c.Get(short, "test/a")
			if err == nil {
				t.Error("a store that is down has answered")
			} else if strings.Contains(err.Error(), "waiting for earlier requests") {
				waiting.Add(1)
			}
		}()
	}
	wg.Wait()
	if n := waiting.Load(); n < 4 {
		t.Errorf("%d of 6 requests waited for a place, want at least 4", n)
	}
}

// TestNoSpace: a store without space for writes says so, in errors and in the status. What is there
// can be read, watched, kept alive and deleted, and writes work as soon as there is room.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	cfg := config(server)
	c, other := open(t, cfg), open(t, cfg)
	ctx := timeout(t, time.Minute)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(kvstore.Put(ctx, c, "test/leased", []byte("1"), kvstore.Leased))
	must(kvstore.Put(ctx, c, "test/other", []byte("1"), kvstore.Permanent))
	events := c.Watch(ctx, "test/")
	for range 3 {
		<-events
	}
	makeRoom := server.UseUpSpace()
	c.Check(ctx)
	if st := c.Status(); !st.Full || st.State != kvstore.StateDegraded || !strings.Contains(st.Message, "space is exhausted") {
		t.Errorf("status of a full store: %+v", st)
	}
	for name, err := range map[string]error{
		"a write": kvstore.Put(ctx, c, "test/new", []byte("1"), kvstore.Permanent), "a write with the lease": kvstore.Put(ctx, c, "test/leased", []byte("2"), kvstore.Leased),
		"a new lease": kvstore.Put(ctx, other, "test/new", []byte("1"), kvstore.Leased),
	} {
		if !errors.Is(err, kvstore.ErrNoSpace) {
			t.Errorf("%s in a full store: %v", name, err)
		}
	}
	if kv, err := c.Get(ctx, "test/leased"); err != nil || kv.Lease == "" {
		t.Errorf("the leased key of a full store: %+v, %v", kv, err)
	}
	deleted, err := c.Txn(ctx, kvstore.Txn{If: []kvstore.Cond{kvstore.Exists("test/other")}, Then: []kvstore.Op{kvstore.DeleteOp("test/other")}})
	if err != nil || !deleted.Succeeded {
		t.Errorf("a deletion in a full store: %+v, %v", deleted, err)
	}
	if ev := <-events; ev.Kind != kvstore.EventDelete || ev.Key != "test/other" {
		t.Errorf("event %+v", ev)
	}
	makeRoom()
	must(kvstore.Put(ctx, c, "test/new", []byte("1"), kvstore.Leased))
	c.Check(ctx)
	if st := c.Status(); st.Full || st.State != kvstore.StateOK || st.LastError != "" || strings.Contains(st.Message, "space") {
		t.Errorf("status with room again: %+v", st)
	}
}

// TestCertificatePathsChanged: the settings file names other certificate files, and the former ones
// are gone. The next connection uses the new ones.
func TestCertificatePathsChanged(t *testing.T) {
	t.Parallel()
	ca := kvstoretest.NewAuthority(t)
	server := kvstoretest.StartSecureEtcd(t, ca)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	cfg := etcd.Defaults()
	cfg.File, cfg.QPS = path("etcd.yaml"), 0
	cfg.CheckInterval, cfg.FailingCheckInterval, cfg.CheckTimeout = time.Second, time.Second, time.Second
	settings := func(text string) {
		t.Helper()
		if err := os.WriteFile(cfg.File, fmt.Appendf(nil, "endpoints: [%q]\n%s", server.Endpoint(), text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	issue := func(to string) {
		t.Helper()
		cert, key := ca.Issue(t, "agent", x509.ExtKeyUsageClientAuth)
		for name, data := range map[string][]byte{"crt": cert, "key": key, "ca": ca.PEM()} {
			if err := os.WriteFile(path(to+"."+name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		settings(fmt.Sprintf("cert-file: %q\nkey-file: %q\ntrusted-ca-file: %q\n", path(to+".crt"), path(to+".key"), path(to+".ca")))
	}
	issue("first")
	c := open(t, cfg)
	ctx := timeout(t, time.Minute)
	if err := kvstore.Put(ctx, c, "test/a", nil, kvstore.Permanent); err != nil {
		t.Fatal(err)
	}
	issue("second")
	for _, name := range []string{"first.crt", "first.key", "first.ca"} {
		if err := os.Remove(path(name)); err != nil {
			t.Fatal(err)
		}
	}
	server.Stop()
	server.Start()
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := kvstore.Put(attempt, c, "test/b", nil, kvstore.Permanent)
		cancel()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("with the new certificates: %v", err)
		}
	}
	// Without any the connection is not made in plain text, nor without a certificate.
	settings("")
	server.Stop()
	server.Start()
	attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := kvstore.Put(attempt, c, "test/c", nil, kvstore.Permanent); err == nil {
		t.Error("it connects without certificates")
	}
	for !strings.Contains(c.Status().LastError, "etcd.yaml") {
		if ctx.Err() != nil {
			t.Fatalf("the status does not name the settings file: %+v", c.Status())
		}
		time.Sleep(10 * time.Millisecond)
	}
}
