package services

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/service"
)

const goodFile = `
services:
- metadata: {namespace: default, name: web}
  spec: {type: NodePort, clusterIPs: [10.96.0.80, "fd00::80"], externalIPs: [198.51.100.1], ports: [{name: http, port: 80, nodePort: 30080}]}
- metadata: {namespace: other, name: web}
  spec: {clusterIP: None}
endpoints:
- metadata: {namespace: default, name: web-1, labels: {kubernetes.io/service-name: web}}
  addressType: IPv4
  ports: [{name: http, port: 8080}]
  endpoints: [{addresses: [192.0.2.11]}, {addresses: [192.0.2.12], conditions: {ready: false, serving: true, terminating: true}}]
`

// TestParseFile reads a file, and refuses what an API server would.
func TestParseFile(t *testing.T) {
	t.Parallel()
	got, err := parseFile([]byte(goodFile))
	if err != nil {
		t.Fatal(err)
	}
	web := got.services[service.Name{Namespace: "default", Name: "web"}]
	slice := got.slices[service.Name{Namespace: "default", Name: "web-1"}]
	if len(got.services) != 2 || len(web.ClusterIPs) != 2 || len(web.ExternalIPs) != 1 || web.Ports[0].NodePort != 30080 {
		t.Errorf("services are %+v", got.services)
	}
	if slice.Service != "web" || len(slice.Endpoints) != 2 || !slice.Endpoints[0].Ready || slice.Endpoints[1].Ready || !slice.Endpoints[1].Terminating {
		t.Errorf("the slice is %+v", slice)
	}
	if got, err := parseFile([]byte("services: []")); err != nil || got.services == nil || len(got.services) != 0 {
		t.Errorf("a file that says that there are no services: %+v, %v", got, err)
	}
	for _, text := range []string{"", "\n", "# services\n", "{}", "services:\n", "endpoints: []\n"} {
		if _, err := parseFile([]byte(text)); err == nil || !strings.Contains(err.Error(), `write "services: []"`) {
			t.Errorf("%q: error %v, want it to say that there is no list, and how to write an empty one", text, err)
		}
	}
	for change, want := range map[[2]string]string{
		{"10.96.0.80", "10.96.0.800"}:                         "10.96.0.800",
		{"198.51.100.1", "here"}:                              "here",
		{"port: 80,", "port: 80000,"}:                         "port",
		{"name: web}\n  spec: {type", "}\n  spec: {type"}:     "service 1 has no name",
		{"namespace: other", "namespace: default"}:            "twice",
		{"192.0.2.11", "2001:db8::1"}:                         "no address of addressType IPv4",
		{"addressType: IPv4", "addressType: FQDN"}:            "addressType",
		{"kubernetes.io/service-name: web", "app: web"}:       "set the label",
		{"endpoints:\n- ", "slices:\n- "}:                     "slices",
		{"ready: false", "ready: maybe"}:                      "ready of type bool",
		{"{name: http, port: 8080}", "{name: http, port: 0}"}: "invalid port",
	} {
		text := strings.Replace(goodFile, change[0], change[1], 1)
		if text == goodFile {
			t.Fatalf("%q is not in the file", change[0])
		}
		if _, err := parseFile([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want it to name %q", change[1], err, want)
		}
	}
}

// TestBrokenFileFirst: the first file is empty. It is reported that no services are known,
// not that there are former ones; once it is mended the start goes on, and a later fault says
// that the services are the former ones.
func TestBrokenFileFirst(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "services.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	reports, synced := make(chan error, 10), make(chan struct{})
	next := func() error {
		t.Helper()
		select {
		case err := <-reports:
			return err
		case <-time.After(20 * time.Second):
			t.Fatal("nothing is reported")
			return nil
		}
	}
	write("")
	s, err := New(Config{NodeName: "n1", Kernel: fake.New().Maps, File: &File{
		Path: path, Interval: 10 * time.Millisecond, Report: func(err error) { reports <- err },
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.followFile(ctx, func() { s.engine.Synced(); close(synced) }) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	if err := next(); err == nil || !strings.Contains(err.Error(), "no services are known yet") || strings.Contains(err.Error(), "of before") {
		t.Errorf("reported: %v, want that no services are known yet", err)
	}
	select {
	case <-synced:
		t.Error("the start goes on without services")
	default:
	}
	write(goodFile)
	if err := next(); err != nil {
		t.Errorf("reported: %v, want that all is well", err)
	}
	select {
	case <-synced:
	case <-time.After(20 * time.Second):
		t.Error("the file is mended, and the start does not go on")
	}
	for _, text := range []string{"services: here", ""} {
		write(text)
		if err := next(); err == nil || !strings.Contains(err.Error(), "services are those of before") {
			t.Errorf("%q: reported: %v, want that services are those of before", text, err)
		}
		if n := s.Table().Len(); n == 0 {
			t.Errorf("%q: no services are left", text)
		}
		write(goodFile)
		if err := next(); err != nil {
			t.Errorf("reported: %v, want that all is well again", err)
		}
	}
}

// TestFileWrittenInPlace: while the file is written in place, or cut to nothing, or gone, the
// services are the former ones; nothing of a half that would make sense by itself is taken. What is
// there to stay counts, also if it is shorter.
func TestFileWrittenInPlace(t *testing.T) {
	t.Parallel()
	l := looker{path: filepath.Join(t.TempDir(), "services.yaml")}
	look := func(what, want string) {
		t.Helper()
		if data, err := l.changed(); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v, want %q", what, data, err, want)
		}
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(l.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.changed(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	write(goodFile[:len(goodFile)/2])
	look("half a file", "")
	write(goodFile)
	look("the whole file, which may go on", "")
	look("the file as it stays", goodFile)
	look("nothing has changed", "")
	write("")
	look("cut to nothing", "")
	write(goodFile)
	look("written again", "")
	look("the same as before", "")
	write("")
	look("cut to nothing", "")
	if data, err := l.changed(); data == nil || len(data) > 0 || err != nil {
		t.Errorf("it stays empty, which is to be evaluated: %q, %v", data, err)
	}
	if err := os.Remove(l.path); err != nil {
		t.Fatal(err)
	}
	if data, err := l.changed(); data != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is gone: %q, %v", data, err)
	}
	write(goodFile)
	look("it comes again", "")
	look("it has come again", goodFile)
	for i := range maxRestless {
		write(goodFile + strings.Repeat("#", i+1))
		look("it changes all the time", "")
	}
	write(goodFile + "# for long")
	if data, err := l.changed(); data != nil || err == nil {
		t.Errorf("it has changed at each look: %q, %v", data, err)
	}
	look("it stays", goodFile+"# for long")
}

// FuzzParseFile: whatever is in the file, all that is taken of it can be acted on.
func FuzzParseFile(f *testing.F) {
	f.Add([]byte(goodFile))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseFile(data)
		if err != nil {
			return
		}
		e := service.New(service.Local{Node: "n1"})
		for _, s := range got.slices {
			e.UpsertSlice(s)
		}
		for _, s := range got.services {
			e.UpsertService(s)
		}
		e.Synced()
	})
}
