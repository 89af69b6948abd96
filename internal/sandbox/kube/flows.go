package kube

import (
	"context"
	"crypto/rand"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/pkg/retry"
)

// A cluster on the network of this product has a relay of its flows, and a page that shows them:
// processes beside the control plane, so that they cost no pod and are there while nodes come and
// go. Agents and relay know each other by certificates, as they do with the chart.
const (
	relayName = "hubble-relay"
	pageName  = "hubble-ui"
	hubbleDir = "hubble" // below pki

	hubbleSecret = "hubble-server-certs"
	hubblePath   = "/var/lib/cilium/tls/hubble" // where agents find it
)

// showsFlows reports whether such a cluster has a relay and a page. A manifest of the user
// configures flows itself.
func (c *Config) showsFlows() bool { return c.Mode == Full && c.CNI == Hawser && c.Manifest == "" }

func (c *Cluster) relaySocket() string { return c.path("hubble-relay.sock") }

// writeHubblePKI writes the certificates of agents and relay, and the token of the page, into dir.
// What agents serve with is of another authority than what the relay asks with: no agent reads what
// others serve.
func writeHubblePKI(dir string, st *state) error {
	servers, err := newAuthority("hawser-sandbox-" + st.Name + "-flows-servers")
	if err != nil {
		return err
	}
	clients, err := newAuthority("hawser-sandbox-" + st.Name + "-flows-clients")
	if err != nil {
		return err
	}
	agent, err := servers.issue(pkix.Name{CommonName: "hubble-agents"}, []string{"*." + st.Name + ".hubble-grpc.cilium.io"})
	if err != nil {
		return err
	}
	relay, err := clients.issue(pkix.Name{CommonName: relayName}, nil)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var errs []error
	for name, data := range map[string][]byte{
		"servers-ca.crt": servers.pem, "clients-ca.crt": clients.pem, "agent.crt": agent.cert, "agent.key": agent.key,
		"relay.crt": relay.cert, "relay.key": relay.key, "token": []byte(rand.Text()),
	} {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return errors.Join(errs...)
}

// hubbleOptions are those of agents that serve flows to the relay.
func (s *state) hubbleOptions() map[string]string {
	if !s.Flows {
		return nil
	}
	return map[string]string{
		"enable-hubble": "true", "hubble-listen-address": fmt.Sprintf(":%d", flowserver.DefaultPort), "hubble-tls-cert-file": hubblePath + "/tls.crt",
		"hubble-tls-key-file": hubblePath + "/tls.key", "hubble-tls-client-ca-files": hubblePath + "/ca.crt",
	}
}

// hubbleAgent gives agents their certificates, as the chart does.
func hubbleAgent(spec map[string]any) {
	for _, c := range spec["containers"].([]any) {
		container := c.(map[string]any)
		mounts, _ := container["volumeMounts"].([]any)
		container["volumeMounts"] = append(mounts, map[string]any{"name": "hubble-tls", "mountPath": hubblePath, "readOnly": true})
	}
	volumes, _ := spec["volumes"].([]any)
	spec["volumes"] = append(volumes, map[string]any{"name": "hubble-tls", "secret": map[string]any{"secretName": hubbleSecret, "optional": true, "defaultMode": 0o400}})
}

// deployHubbleSecret makes the certificates of agents known to the cluster.
func (c *Cluster) deployHubbleSecret(ctx context.Context, st *state) error {
	data := map[string]string{}
	for key, name := range map[string]string{"ca.crt": "clients-ca.crt", "tls.crt": "agent.crt", "tls.key": "agent.key"} {
		file, err := os.ReadFile(c.path("pki", hubbleDir, name))
		if err != nil {
			return err
		}
		data[key] = string(file)
	}
	doc, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": map[string]any{"name": hubbleSecret, "namespace": "kube-system"}, "stringData": data,
	})
	if err != nil {
		return err
	}
	return c.apply(ctx, st, doc)
}

// relay gets the list of nodes from the first one, and then the flows of all of them.
func (c *Cluster) relay(st *state) program {
	pki := func(name string) string { return c.path("pki", hubbleDir, name) }
	return program{name: relayName, argv: []string{
		filepath.Join(st.BinDir, "hawser-relay"), "--cluster-name", st.Name, "--listen-address", "unix://" + c.relaySocket(),
		"--peer-service", fmt.Sprintf("%s:%d", st.Nodes[0].IPv4, flowserver.DefaultPort), "--health-listen-address", "", "--retry-timeout", "5s",
		"--tls-hubble-client-cert-file", pki("relay.crt"), "--tls-hubble-client-key-file", pki("relay.key"), "--tls-hubble-server-ca-files", pki("servers-ca.crt"),
	}}
}

// page is served at a socket of the machine's loopback.
func (c *Cluster) page(st *state, l *listener) program {
	return program{name: pageName, files: []*os.File{l.File}, argv: []string{
		filepath.Join(st.BinDir, "hawser"), "ui", "--server", "unix://" + c.relaySocket(), "--listen", "fd://3", "--token-file", c.path("pki", hubbleDir, "token"),
	}}
}

// startFlows starts what does not run of relay and page. A cluster works without the page: if the
// program was built without it, it is said once.
func (c *Cluster) startFlows(ctx context.Context, st *state) error {
	if !st.Flows {
		return nil
	}
	if !st.Processes[relayName].Alive() {
		if err := c.start(st, c.relay(st)); err != nil {
			return err
		}
	}
	if st.Processes[pageName].Alive() {
		return c.save(st)
	}
	if err := c.startPage(st); err != nil {
		return err
	}
	if err := c.waitPage(ctx, st); err != nil {
		c.say("no page of flows: %v", err)
		delete(st.Processes, pageName)
	}
	return c.save(st)
}

// startPage leaves the socket to the page alone: were it open here, too, connections to a page that
// has ended would be accepted, and wait for an answer.
func (c *Cluster) startPage(st *state) error {
	l, err := listen(st.PagePort) // its address stays what it was
	if err != nil {
		return fmt.Errorf("page of flows: %w", err)
	}
	defer l.Close()
	st.PagePort = l.port
	return c.start(st, c.page(st, l))
}

// waitPage waits until the page is served.
func (c *Cluster) waitPage(ctx context.Context, st *state) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.StartTimeout)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, loopbackPage(st.PagePort), nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			return res.Body.Close()
		}
		if !st.Processes[pageName].Alive() {
			return errors.New(machine.LastLines(c.log(pageName), 1))
		}
		if !retry.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("it does not answer (%w): %s", err, machine.LastLines(c.log(pageName), 3))
		}
	}
}

// endFlows ends relay and page, for programs that have changed.
func (c *Cluster) endFlows(st *state) error {
	for _, name := range []string{pageName, relayName} {
		p := st.Processes[name]
		if !p.Alive() {
			continue
		}
		if err := unix.Kill(p.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end %s: %w", name, err)
		}
		if err := p.WaitEnded(5 * time.Second); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func loopbackPage(port int) string { return fmt.Sprintf("http://127.0.0.1:%d/", port) }

// pageURL is what opens the page; empty if there is none.
func (c *Cluster) pageURL(st *state) string {
	if _, ok := st.Processes[pageName]; !ok {
		return ""
	}
	token, err := os.ReadFile(c.path("pki", hubbleDir, "token"))
	if err != nil {
		return ""
	}
	return loopbackPage(st.PagePort) + "#token=" + string(token)
}

// program is this program as a person types it.
func (c *Cluster) program() string { return machine.Typed(c.cfg.Self[:1]...) }

// observeCommand shows the flows of all nodes.
func (c *Cluster) observeCommand() string {
	return c.program() + " observe --server " + c.relaySocket()
}
