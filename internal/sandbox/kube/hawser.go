package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/internal/sandbox/kube/image"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

const (
	hawserImage     = "docker.io/library/hawser:dev" // as a runtime completes the name hawser:dev of the manifest
	hawserConfig    = "cilium-config"
	agentRole       = "hawser-agent"
	manifestOfAgent = "deploy/hawser.yaml"
)

// hawserPrograms are what the product's image holds.
var hawserPrograms = []string{"hawser", "hawser-agent", "hawser-cni", "hawser-operator", "hawser-relay"}

func (c *Cluster) hawserImage() string { return filepath.Join(c.dataDir(), "images", "hawser.tar") }

// makeHawserImage makes the product's image of the programs in BinDir, unless it is newer than they
// are. It reports whether it did.
func (c *Cluster) makeHawserImage() (made bool, err error) {
	m := &image.Image{Names: []string{hawserImage}}
	var from []string
	for _, name := range hawserPrograms {
		path := filepath.Join(c.cfg.BinDir, name)
		if _, err := os.Stat(path); err != nil {
			return false, fmt.Errorf("%s is not in %s: build it (make build) or name its directory with --bin-dir", name, c.cfg.BinDir)
		}
		m.Add("/usr/bin/"+name, path)
		from = append(from, path)
	}
	file := c.hawserImage()
	if image.Fresh(file, from...) {
		return false, nil
	}
	m.Dir("/tmp", 0o1777)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return false, err
	}
	return true, m.WriteFile(file)
}

// keepManifest copies the manifest of the configuration into the directory of the cluster, and
// returns the copy's path; "" if none is configured. New programs are installed with the copy: the
// file that the user named may be gone by then.
func (c *Cluster) keepManifest() (string, error) {
	if c.cfg.Manifest == "" {
		return "", nil
	}
	data, err := os.ReadFile(c.cfg.Manifest)
	if err != nil {
		return "", err
	}
	kept := c.path("manifest.yaml")
	return kept, os.WriteFile(kept, data, 0o600)
}

// deployHawser applies the product's manifests, those of the checkout unless others are named, with
// what is special about this cluster.
func (c *Cluster) deployHawser(ctx context.Context, st *state) error {
	file := st.Manifest
	if file == "" {
		if st.Source == "" {
			return fmt.Errorf("%s: it is in a checkout of Hawser, so run this from one", manifestOfAgent)
		}
		file = filepath.Join(st.Source, manifestOfAgent)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	manifest, err := adaptManifest(data, st)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return c.apply(ctx, st, manifest)
}

// adaptManifest sets in the product's manifests what a user would set as values of the chart: where
// the API server is, the ranges that nodes have, and who leads to services.
func adaptManifest(data []byte, st *state) ([]byte, error) {
	groups, err := findCgroups()
	if err != nil {
		return nil, err
	}
	set := map[string]string{
		"cluster-name": st.Name, "cluster-id": fmt.Sprint(st.ID), "ipam": "kubernetes", "enable-ipv6": fmt.Sprint(st.DualStack), "kube-proxy-replacement": fmt.Sprint(!st.KubeProxy),
	}
	var out []string
	found := map[string]int{}
	for doc := range strings.SplitSeq(string(data), "\n---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			return nil, err
		}
		if object == nil {
			continue // comments only
		}
		kind, _ := object["kind"].(string)
		found[kind]++
		switch kind {
		case "ConfigMap":
			config, ok := object["data"].(map[string]any)
			if name := at(object, "metadata", "name"); name != hawserConfig || !ok {
				break
			}
			for k, v := range set {
				if _, ok := config[k]; !ok {
					return nil, fmt.Errorf("ConfigMap %s has no option %s", hawserConfig, k)
				}
				config[k] = v
			}
			for _, options := range []map[string]string{st.storeOptions(), st.hubbleOptions(), st.cloudOptions()} {
				for k, v := range options {
					config[k] = v
				}
			}
			if st.meshed() {
				config["clustermesh-config"], config["enable-well-known-identities"] = "/var/lib/cilium/clustermesh", "false" // as the chart does
			}
		case "ClusterRole":
			if rules, ok := object["rules"].([]any); ok && st.Cloud != "" && at(object, "metadata", "name") == agentRole {
				object["rules"] = append(rules, cloudRule())
			}
		case "DaemonSet", "Deployment":
			spec, ok := at(object, "spec", "template", "spec").(map[string]any)
			if !ok {
				return nil, fmt.Errorf("%s without pods", kind)
			}
			adaptPod(spec, st.plan().master(), groups.unified)
			if kind == "DaemonSet" && st.Flows {
				hubbleAgent(spec)
			}
			if kind == "Deployment" && st.meshed() {
				meshOperator(spec)
			}
			if kind == "Deployment" && st.Cloud != "" {
				st.cloudOperator(spec)
			}
		}
		text, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		out = append(out, string(text))
	}
	for _, kind := range []string{"ConfigMap", "DaemonSet", "Deployment"} {
		if found[kind] == 0 {
			return nil, fmt.Errorf("no %s", kind)
		}
	}
	return []byte(strings.Join(out, "---\n")), nil
}

// adaptPod gives containers the address of the API server, since the way by the service needs them
// first, and where the node has its cgroups of version 2.
func adaptPod(spec map[string]any, master machine.Host, unified string) {
	for _, key := range []string{"initContainers", "containers"} {
		containers, _ := spec[key].([]any)
		for _, c := range containers {
			container := c.(map[string]any)
			env, _ := container["env"].([]any)
			container["env"] = append(env,
				map[string]any{"name": "KUBERNETES_SERVICE_HOST", "value": master.IPv4.String()},
				map[string]any{"name": "KUBERNETES_SERVICE_PORT", "value": fmt.Sprint(apiPort)})
		}
	}
	volumes, _ := spec["volumes"].([]any)
	for _, v := range volumes {
		host, ok := v.(map[string]any)["hostPath"].(map[string]any)
		if ok && host["path"] == cgroupRoot && unified != "" {
			host["path"] = unified
		}
	}
}

// at walks down objects by keys.
func at(object any, keys ...string) any {
	for _, k := range keys {
		m, ok := object.(map[string]any)
		if !ok {
			return nil
		}
		object = m[k]
	}
	return object
}

// refreshHawser gives a running cluster the product's programs as they are now, if they changed
// since it got them, and restarts what runs of it.
func (c *Cluster) refreshHawser(ctx context.Context, st *state) error {
	made, err := c.makeHawserImage()
	if err != nil || !made {
		return err
	}
	c.say("Hawser's programs have changed: copying them to the nodes")
	if err := c.endFlows(st); err != nil {
		return err
	}
	for _, n := range st.Nodes {
		if !n.Init.Alive() {
			continue // it takes the image in when it is started
		}
		// By the standard input: the node does not see the file, nor this one's directory.
		f, err := os.Open(c.hawserImage())
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "nsenter", "-t", fmt.Sprint(n.Init.PID), "-m", "-p", "-n", "-u", "-i", "-C", "--",
			nodeFiles+"/kube/ctr", "-n", "k8s.io", "images", "import", "--local=true", "-")
		cmd.Stdin = f
		out, err := cmd.CombinedOutput()
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("import on %s: %w: %s", n.Name, err, tail(string(out)))
		}
	}
	if st.CNI == None {
		return nil // what runs of it, if anything, is the user's
	}
	if err := c.deployHawser(ctx, st); err != nil {
		return err
	}
	if err := c.kubectl(ctx, st, nil, "-n", "kube-system", "rollout", "restart", "daemonset/hawser-agent", "deployment/hawser-operator"); err != nil {
		return err
	}
	return c.waitHawser(ctx, st)
}

// waitHawser waits until the agent of every node that runs is ready.
func (c *Cluster) waitHawser(ctx context.Context, st *state) error {
	err := c.kubectl(ctx, st, nil, "-n", "kube-system", "rollout", "status", "daemonset/hawser-agent", "--timeout="+c.cfg.StartTimeout.String())
	if err != nil {
		return fmt.Errorf("the agents are not ready: %w; see `hawser sandbox kubectl --name %s -- -n kube-system logs daemonset/hawser-agent`", err, st.Name)
	}
	c.say("Hawser is ready on every node")
	return nil
}
