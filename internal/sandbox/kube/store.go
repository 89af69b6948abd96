package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Stores that a cluster may keep its identities in, instead of objects of Kubernetes.
const (
	Etcd   = "etcd"
	Consul = "consul"
)

const (
	// storeName is the process of the store, and the directory of its data.
	storeName = "store"
	// storePort is on the control plane's address. Beside it are those of etcd for Kubernetes and
	// for other clusters.
	storePort = 2391
)

func (c *Cluster) storeSocket() string { return c.path("store.sock") }

// storeDir is where the store keeps its data.
func (c *Cluster) storeDir() string { return filepath.Join(c.dataDir(), storeName) }

// checkStore sees that there is a program for the store.
func (c *Cluster) checkStore() error {
	if c.cfg.Store != Consul {
		return nil
	}
	if _, err := os.Stat(c.consul()); err != nil {
		return errors.Join(fmt.Errorf("no Consul in %s: `make bin/consul` builds it", c.cfg.BinDir), err)
	}
	return nil
}

func (c *Cluster) consul() string { return filepath.Join(c.cfg.BinDir, "consul") }

// store is the process of the store that agents and operators keep identities, nodes and addresses
// of pods in.
func (c *Cluster) store(st *state) program {
	address, socket := st.plan().master().IPv4.String(), "unix://"+c.storeSocket()
	if st.Store == Etcd {
		return program{name: storeName, ready: true, argv: c.self("etcd", "--dir", c.storeDir(), "--ready-fd", "3",
			"--listen", fmt.Sprintf("http://%s:%d,%s", address, storePort, socket))}
	}
	return program{name: storeName, argv: []string{
		c.consul(), "agent", "-server", "-bootstrap-expect=1", "-node=store", "-data-dir=" + c.storeDir(), "-bind=" + address, "-log-level=warn",
		"-http-port=" + strconv.Itoa(storePort), "-dns-port=-1", "-grpc-port=-1", "-grpc-tls-port=-1",
		"-hcl=" + fmt.Sprintf(`addresses { http = %q }`, address+" "+socket),
		// One server elects itself: no reason to wait for votes, nor to ask the network for updates
		// of the program.
		"-hcl=performance { raft_multiplier = 1 }", "-hcl=disable_update_check = true",
	}}
}

// storeOptions are those of the product that lead to the store.
func (s *state) storeOptions() map[string]string {
	if s.Store == "" {
		return nil
	}
	address := fmt.Sprintf("%s:%d", s.plan().master().IPv4, storePort)
	if s.Store == Etcd {
		address = "http://" + address
	}
	return map[string]string{
		"kvstore": s.Store, "kvstore-opt": s.Store + ".address=" + address, "identity-allocation-mode": "kvstore",
	}
}
