package allocator_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/consul"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// allocateOn has the node of an address use one ID for a key.
func allocateOn(ctx context.Context, store kvstore.Backend, address string) error {
	backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: store, BasePath: "example/ids", Suffix: address, KeyType: allocator.StringKey(""),
	})
	if err != nil {
		return err
	}
	a, err := allocator.NewAllocator(allocator.StringKey(""), backend, allocator.WithMin(256), allocator.WithMax(65535))
	if err != nil {
		return err
	}
	defer a.Close()
	go func() {
		if err := a.Run(ctx); err != nil {
			log.Print(err)
		}
	}()
	key := allocator.StringKey("app=web;")
	id, isNew, err := a.Allocate(ctx, key)
	if err != nil {
		return err
	}
	fmt.Println(key, "has the ID", id, "which is new:", isNew)
	_, err = a.Release(ctx, key) // no other key can have the ID before, and for a while afterwards
	return err
}

// On etcd, without waiting for it: what needs the store waits itself, as long as its context lets
// it.
func Example_etcd() {
	cfg := etcd.Defaults()
	cfg.Endpoints = strings.Split(os.Getenv("ETCDCTL_ENDPOINTS"), ",") // such as http://127.0.0.1:2379
	store, err := etcd.New(context.Background(), cfg, slog.Default())
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if err := allocateOn(context.Background(), store, "192.0.2.1"); err != nil {
		log.Fatal(err)
	}
}

// On Consul.
func Example_consul() {
	cfg := consul.Defaults()
	cfg.Address = os.Getenv("CONSUL_HTTP_ADDR") // such as 127.0.0.1:8500
	store, err := consul.New(context.Background(), cfg, slog.Default())
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if err := allocateOn(context.Background(), store, "192.0.2.1"); err != nil {
		log.Fatal(err)
	}
}

// TestExamplesOnStores runs the examples on real stores.
func TestExamplesOnStores(t *testing.T) {
	for name, run := range map[string]func(t *testing.T){
		"etcd": func(t *testing.T) {
			t.Setenv("ETCDCTL_ENDPOINTS", kvstoretest.StartEtcd(t).Endpoint())
			Example_etcd()
		},
		"Consul": func(t *testing.T) {
			t.Setenv("CONSUL_HTTP_ADDR", kvstoretest.StartConsul(t))
			Example_consul()
		},
	} {
		t.Run(name, func(t *testing.T) {
			said := output(t, func() { run(t) })
			if want := regexp.MustCompile(`^app=web; has the ID \d+ which is new: true\n$`); !want.MatchString(said) {
				t.Errorf("the example prints %q", said)
			}
		})
	}
}

// output returns what f prints. Tests that use it cannot be parallel.
func output(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "stdout")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	was := os.Stdout
	defer func() { os.Stdout = was }()
	os.Stdout = file
	f()
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(said)
}
