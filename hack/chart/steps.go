package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

type step struct {
	what string
	do   func(context.Context) error
}

func (l *lab) steps() []step {
	if l.id != 0 {
		return l.storeSteps()
	}
	return []step{
		{"install, addresses from the operator (ipam cluster-pool)", l.install("ipam.mode=cluster-pool", "ipam.clusterPool.ipv4Ranges={10.200.0.0/20}", "ipam.clusterPool.ipv4MaskSize=26")},
		{"nodes have blocks of the range, one each", l.blocks("10.200.0.0/20", 26)},
		{"pods reach each other and services; policies hold", l.works},
		{"upgrade with a value that does not exist is refused", l.refused("agent.colour=red")},
		{"upgrades that would cut the nodes from each other are refused", l.cuts},
		{"upgrade with metrics and debug log, under traffic", l.underTraffic(l.upgrade("prometheus.agent.enabled=true", "prometheus.operator.enabled=true", "log.debug=true"))},
		{"metrics are served", l.metrics},
		{"upgrade with flows of all nodes and their page, under traffic", l.underTraffic(l.upgrade("hubble.enabled=true", "hubble.relay.enabled=true", "hubble.ui.enabled=true"))},
		{"the relay is connected to all nodes, the page serves who has the token", l.flows},
		{"upgrade to enforcement always: nothing is allowed that no policy allows", l.enforced},
		{"upgrade back to enforcement by policies", l.upgrade("policy.enforcement=default")},
		{"upgrades keep certificates that have time left", l.keepsCertificates},
		{"pods reach each other and services; policies hold", l.works},
		{"rollback to the first revision, under traffic", l.underTraffic(l.rollback(1))},
		{"pods reach each other and services; policies hold", l.works},
		{"uninstall: nothing of the release is left in the cluster", l.uninstall},
		{"cleanup as the manual says: nothing is left on nodes", l.cleanup},
		{"install, addresses from Kubernetes (ipam kubernetes), identities by the operator", l.install("ipam.mode=kubernetes", "identity.managementMode=operator")},
		{"nodes have their podCIDRs", l.blocks("10.244.0.0/16", 24)},
		{"pods reach each other and services; policies hold", l.works},
		{"the operator has made the identities, and agents may not", l.identities(false)},
		{"upgrade to identities by agents and operator (both), under traffic", l.underTraffic(l.upgrade("identity.managementMode=both"))},
		{"pods reach each other and services; policies hold", l.works},
		{"agents may make identities now", l.identities(true)},
		{"upgrade to slices that no agent reads yet, identities by the operator, under a policy and traffic", l.underPolicy(l.upgrade("identity.managementMode=operator",
			"ciliumEndpointSlice.enabled=true", "agent.extraArgs={--enable-cilium-endpoint-slice=false}"))},
		{"every pod is in a slice", l.sliced},
		{"upgrade to agents that read slices, under a policy and traffic", l.underPolicy(l.upgrade("agent.extraArgs={}"))},
		{"pods reach each other and services; policies hold", l.works},
		{"upgrade to slices without CiliumEndpoints (slim), under a policy and traffic", l.underPolicy(l.upgrade("ciliumEndpointSlice.mode=slim"))},
		{"every pod is in a slice", l.sliced},
		{"pods reach each other and services; policies hold", l.works},
		{"pods that start now are in slices and have no CiliumEndpoint", l.slim},
		{"rollback to slices of CiliumEndpoints in one step, under a policy and traffic", l.underPolicy(l.rollback(4))},
		{"every pod is in a slice and has a CiliumEndpoint", l.objects},
		{"pods reach each other and services; policies hold", l.works},
		{"upgrade to slices without CiliumEndpoints (slim) again", l.upgrade("ciliumEndpointSlice.mode=slim")},
		{"upgrade to agents that write CiliumEndpoints again, under a policy and traffic", l.underPolicy(l.upgrade("agent.extraArgs={--disable-endpoint-crd=false}"))},
		{"every pod is in a slice and has a CiliumEndpoint", l.objects},
		{"upgrade to slices of CiliumEndpoints, under a policy and traffic", l.underPolicy(l.upgrade("ciliumEndpointSlice.mode=default", "agent.extraArgs={}"))},
		{"every pod is in a slice and has a CiliumEndpoint", l.objects},
		{"an upgrade that deletes slices while agents read them is refused", l.refused("ciliumEndpointSlice.enabled=false")},
		{"uninstall: nothing of the release is left in the cluster", l.uninstall},
		{"cleanup as the manual says: nothing is left on nodes", l.cleanup},
	}
}

// install installs the chart and waits until pods can start.
func (l *lab) install(values ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		if _, err := l.do(ctx, l.helm, append([]string{"install", "hawser", l.chart, "--namespace", "kube-system"}, l.values(values)...)...); err != nil {
			return err
		}
		return l.rolledOut(ctx)
	}
}

// upgrade changes values of what is installed, and leaves the others as they are. What begins with
// a dash is a flag of helm.
func (l *lab) upgrade(values ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		if _, err := l.do(ctx, l.helm, append([]string{"upgrade", "hawser", l.chart, "--namespace", "kube-system", "--reuse-values"}, set(values)...)...); err != nil {
			return err
		}
		return l.rolledOut(ctx)
	}
}

func (l *lab) rollback(revision int) func(context.Context) error {
	return func(ctx context.Context) error {
		if _, err := l.do(ctx, l.helm, "rollback", "hawser", fmt.Sprint(revision), "--namespace", "kube-system"); err != nil {
			return err
		}
		return l.rolledOut(ctx)
	}
}

// cuts tries values whose change would have some nodes not understand the others.
func (l *lab) cuts(ctx context.Context) error {
	all := [][]string{
		{"routing.mode=native"}, {"routing.tunnelPort=8473"}, {"cluster.id=7"}, {"ipam.mode=kubernetes"},
		{"kvstore.type=etcd", `kvstore.options.etcd\.address=http://192.0.2.1:2379`},
	}
	if !l.replace {
		all = append(all, []string{"kubeProxyReplacement=true", "loadBalancer.mode=dsr"})
	}
	var errs []error
	for _, values := range all {
		said, err := l.refusal(ctx, values...)
		if err == nil && !strings.Contains(said, "upgrade.allow={") {
			err = fmt.Errorf("that is not why it is refused: %s", said)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", strings.Join(values, ", "), err))
		}
	}
	return errors.Join(errs...)
}

// refused tries an upgrade with values that are not to be had.
func (l *lab) refused(values ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := l.refusal(ctx, values...)
		return err
	}
}

// refusal returns what helm says to values that are not to be had.
func (l *lab) refusal(ctx context.Context, values ...string) (said string, err error) {
	before, err := l.k(ctx, "-n", "kube-system", "get", "daemonset", "hawser-agent", "-o", "jsonpath={.metadata.resourceVersion}")
	if err != nil {
		return "", err
	}
	refusal := l.upgrade(values...)(ctx)
	if refusal == nil {
		return "", errors.New("helm accepts it")
	}
	after, err := l.k(ctx, "-n", "kube-system", "get", "daemonset", "hawser-agent", "-o", "jsonpath={.metadata.resourceVersion}")
	if err == nil && before != after {
		err = errors.New("the DaemonSet has changed all the same")
	}
	return refusal.Error(), err
}

// rolledOut waits for every part of the release, and for what it makes possible.
func (l *lab) rolledOut(ctx context.Context) error {
	for _, what := range []string{"daemonset/hawser-agent", "deployment/hawser-operator"} {
		if _, err := l.k(ctx, "-n", "kube-system", "rollout", "status", what, "--timeout=240s"); err != nil {
			return err
		}
	}
	if _, err := l.k(ctx, "wait", "--for=condition=Ready", "node", "--all", "--timeout=120s"); err != nil {
		return err
	}
	if _, err := l.k(ctx, "-n", "kube-system", "scale", "deployment", "coredns", "--replicas=1"); err != nil {
		return err
	}
	_, err := l.k(ctx, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s")
	return err
}

// blocks sees that each node has a block of its own of this size.
func (l *lab) blocks(within string, bits int) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := l.k(ctx, "get", "ciliumnodes", "-o", `jsonpath={range .items[*]}{.spec.ipam.podCIDRs[*]}{"\n"}{end}`)
		if err != nil {
			return err
		}
		var have []netip.Prefix
		whole := netip.MustParsePrefix(within)
		for _, f := range strings.Fields(out) {
			p, err := netip.ParsePrefix(f)
			if err != nil {
				return err
			}
			if p.Bits() != bits || !whole.Contains(p.Addr()) || slices.Contains(have, p) {
				return fmt.Errorf("%s is no block of its own of %s with %d bits; there are %q", p, whole, bits, out)
			}
			have = append(have, p)
		}
		if len(have) != len(l.nodes()) {
			return fmt.Errorf("%d blocks for %d nodes", len(have), len(l.nodes()))
		}
		return nil
	}
}

const world = `
apiVersion: v1
kind: Namespace
metadata: {name: chart}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web, namespace: chart}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: web, image: "IMAGE", args: [netexec, --http-port=8080], readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: client, namespace: chart}
spec:
  selector: {matchLabels: {app: client}}
  template:
    metadata: {labels: {app: client}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: client, image: "IMAGE", args: [pause]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: chart}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
`

const onlyClients = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-clients, namespace: chart}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: LABEL}}}]}]
`

// works starts pods on all nodes, if there are none, and tries everything that a network is for.
func (l *lab) works(ctx context.Context) error {
	if err := l.apply(ctx, strings.ReplaceAll(world, "IMAGE", l.image())); err != nil {
		return err
	}
	for _, what := range []string{"daemonset/web", "daemonset/client"} {
		if _, err := l.k(ctx, "-n", "chart", "rollout", "status", what, "--timeout=120s"); err != nil {
			return err
		}
	}
	clients, err := l.pods(ctx, "app=client")
	if err != nil {
		return err
	}
	servers, err := l.pods(ctx, "app=web")
	if err != nil {
		return err
	}
	everybody := func(want bool) error {
		for _, c := range clients {
			for _, s := range servers {
				if err := l.until(ctx, want, c.name, s.ip+":8080"); err != nil {
					return fmt.Errorf("from %s on %s to %s on %s: %w", c.name, c.node, s.name, s.node, err)
				}
			}
			if err := l.until(ctx, want, c.name, "web.chart"); err != nil {
				return fmt.Errorf("from %s to the service by its name: %w", c.name, err)
			}
		}
		return nil
	}
	if err := everybody(true); err != nil {
		return err
	}
	for _, n := range l.nodes() {
		if err := l.fromHost(ctx, "world", n.ip+":30080"); err != nil {
			return fmt.Errorf("from outside to the NodePort of %s: %w", n.name, err)
		}
		address, err := l.k(ctx, "-n", "chart", "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
		if err != nil {
			return err
		}
		if err := l.fromHost(ctx, n.name, address+":80"); err != nil {
			return fmt.Errorf("from node %s to the service: %w", n.name, err)
		}
	}
	for label, want := range map[string]bool{"absent": false, "client": true} {
		if err := l.apply(ctx, strings.ReplaceAll(onlyClients, "LABEL", label)); err != nil {
			return err
		}
		if err := everybody(want); err != nil {
			return fmt.Errorf("with a policy that lets in %s: %w", label, err)
		}
	}
	_, err = l.k(ctx, "-n", "chart", "delete", "networkpolicy", "--all")
	return err
}

// underTraffic has clients ask all servers and the service all the time, and fails if one request
// does.
func (l *lab) underTraffic(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		clients, err := l.pods(ctx, "app=client")
		if err != nil {
			return err
		}
		servers, err := l.pods(ctx, "app=web")
		if err != nil {
			return err
		}
		address, err := l.k(ctx, "-n", "chart", "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
		if err != nil {
			return err
		}
		targets := []string{address + ":80"}
		for _, s := range servers {
			targets = append(targets, s.ip+":8080")
		}
		traffic := l.ask(ctx, clients, targets)
		err = do(ctx)
		asked, lost, endErr := traffic.end()
		if err = errors.Join(err, endErr); err != nil {
			return err
		}
		if asked < 20 || lost != 0 {
			return fmt.Errorf("%d of %d requests were lost", lost, asked)
		}
		fmt.Printf("  %d requests, none lost\n", asked)
		return nil
	}
}

func (l *lab) metrics(ctx context.Context) error {
	for _, n := range l.nodes() {
		out, err := l.do(ctx, l.hawser, "sandbox", "exec", "--name", l.name, "cp", "--", "curl", "-sS", "-m", "5", "http://"+n.ip+":9962/metrics")
		if err != nil || !strings.Contains(out, "\ncilium_") {
			return fmt.Errorf("metrics of the agent on %s: %w: %.200s", n.name, err, out)
		}
	}
	return nil
}

func (l *lab) enforced(ctx context.Context) error {
	if err := l.upgrade("policy.enforcement=always")(ctx); err != nil {
		return err
	}
	clients, err := l.pods(ctx, "app=client")
	if err != nil {
		return err
	}
	servers, err := l.pods(ctx, "app=web")
	if err != nil {
		return err
	}
	return l.until(ctx, false, clients[0].name, servers[0].ip+":8080")
}

// underPolicy does something while a policy lets only clients in, and clients ask all the time.
func (l *lab) underPolicy(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := l.apply(ctx, strings.ReplaceAll(onlyClients, "LABEL", "client")); err != nil {
			return err
		}
		if err := l.underTraffic(do)(ctx); err != nil {
			return err
		}
		_, err := l.k(ctx, "-n", "chart", "delete", "networkpolicy", "--all")
		return err
	}
}

// sliced waits until all pods are in slices.
func (l *lab) sliced(ctx context.Context) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		var missing []string
		out, err := l.k(ctx, "get", "ciliumendpointslices", "-o", `jsonpath={range .items[?(@.namespace=="chart")].endpoints[*]}{.name}{"\n"}{end}`)
		if err != nil {
			return err
		}
		for _, selector := range []string{"app=client", "app=web"} {
			pods, err := l.pods(ctx, selector)
			if err != nil {
				return err
			}
			for _, p := range pods {
				if !slices.Contains(strings.Fields(out), p.name) {
					missing = append(missing, p.name)
				}
			}
		}
		if len(missing) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("in no slice: %s", strings.Join(missing, ", "))
		}
	}
}

// objects waits until all pods are in slices and have CiliumEndpoints.
func (l *lab) objects(ctx context.Context) error {
	if err := l.sliced(ctx); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		out, err := l.k(ctx, "-n", "chart", "get", "ciliumendpoints", "-o", "name")
		if err != nil {
			return err
		}
		if want := 2 * len(l.nodes()); strings.Count(out, "/") == want {
			return nil
		} else if time.Now().After(deadline) {
			return fmt.Errorf("%d pods have these CiliumEndpoints: %s", want, out)
		}
	}
}

// slim restarts the clients.
func (l *lab) slim(ctx context.Context) error {
	if _, err := l.k(ctx, "-n", "chart", "delete", "pods", "-l", "app=client"); err != nil {
		return err
	}
	if _, err := l.k(ctx, "-n", "chart", "rollout", "status", "daemonset/client", "--timeout=120s"); err != nil {
		return err
	}
	if err := errors.Join(l.sliced(ctx), l.works(ctx)); err != nil {
		return err
	}
	out, err := l.k(ctx, "-n", "chart", "get", "ciliumendpoints", "-o", "name")
	if err != nil {
		return err
	}
	if strings.Contains(out, "/client-") {
		return fmt.Errorf("there are CiliumEndpoints: %s", out)
	}
	return nil
}

// identities sees that pods have some, and whether agents have the right to make them.
func (l *lab) identities(agents bool) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := l.k(ctx, "get", "ciliumidentities", "-o", "jsonpath={range .items[*]}{.security-labels}{\"\\n\"}{end}")
		if err != nil {
			return err
		}
		if !strings.Contains(out, `"k8s:app":"client"`) || !strings.Contains(out, `"k8s:app":"web"`) {
			return fmt.Errorf("client and web have no identities of their own: %q", out)
		}
		// It fails if the answer is no.
		out, err = l.k(ctx, "auth", "can-i", "create", "ciliumidentities.cilium.io", "--as=system:serviceaccount:kube-system:hawser-agent")
		if (err == nil) != agents {
			return fmt.Errorf("whether agents may make identities: %s", out)
		}
		return nil
	}
}

// uninstall removes the release, and the pods that had their network from it.
func (l *lab) uninstall(ctx context.Context) error {
	if _, err := l.do(ctx, l.helm, "uninstall", "hawser", "--namespace", "kube-system", "--wait", "--timeout", "2m"); err != nil {
		return err
	}
	// The operators' lease has no holder while they change, and so is not part of the release.
	if _, err := l.k(ctx, "-n", "kube-system", "delete", "lease", "cilium-operator-resource-lock"); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		out, err := l.k(ctx, "get", "all,configmaps,serviceaccounts,secrets,roles,rolebindings,clusterroles,clusterrolebindings,leases", "-A", "-o", "name")
		if err != nil {
			return err
		}
		var left []string
		for line := range strings.Lines(out) {
			if (strings.Contains(line, "hawser") || strings.Contains(line, "cilium") || strings.Contains(line, "hubble")) && !strings.Contains(line, "hawser-sandbox") && !strings.Contains(line, sandboxStore) {
				left = append(left, strings.TrimSpace(line))
			}
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("left: %s", strings.Join(left, ", "))
		}
	}
}

// cleanup does what the manual asks for on each node.
func (l *lab) cleanup(ctx context.Context) error {
	if _, err := l.k(ctx, "delete", "namespace", "chart", "--timeout=120s"); err != nil {
		return fmt.Errorf("pods do not end without the agent: %w", err)
	}
	// Pods without a network now would be restarted over and over.
	if _, err := l.k(ctx, "-n", "kube-system", "scale", "deployment", "coredns", "--replicas=0"); err != nil {
		return err
	}
	if _, err := l.k(ctx, "-n", "kube-system", "wait", "--for=delete", "pod", "-l", "k8s-app=kube-dns", "--timeout=120s"); err != nil {
		return err
	}
	var err error
	for _, n := range l.nodes() {
		err = errors.Join(err, l.cleanNode(ctx, n.name))
	}
	if err != nil {
		return err
	}
	_, err = l.k(ctx, "delete", "-f", "api/crds", "--timeout=120s")
	return err
}

// cleanNode removes what is on a node and looks for more.
func (l *lab) cleanNode(ctx context.Context, node string) error {
	on := func(script string) (string, error) {
		return l.do(ctx, l.hawser, "sandbox", "exec", "--name", l.name, node, "--", "sh", "-c", script)
	}
	elsewhere := ""
	if dir := l.stateDir; dir != "" {
		elsewhere = fmt.Sprintf(" --state-dir %[1]s --socket-path %[1]s/cilium.sock --cni-log-file %[1]s/cilium-cni.log --hubble-socket-path %[1]s/hubble.sock", dir)
	}
	if out, err := on("hawser-agent cleanup --write-cni-conf-when-ready /etc/cni/net.d/05-cilium.conflist" + elsewhere + " && rm /opt/cni/bin/hawser-cni"); err != nil {
		return fmt.Errorf("cleanup on %s: %w\n%s", node, err, out)
	}
	var errs []error
	for what, script := range map[string]string{
		"links":              "ip -o link | grep -E 'hawser|cilium|lxc' || true",
		"routes and rules":   "(ip route; ip rule; ip -6 route) | grep -E 'hawser|cilium|lxc|10\\.200\\.|10\\.244\\.' || true",
		"tables of nftables": "nft list tables | grep -E 'hawser|cilium' || true",
		"pinned BPF objects": "find /sys/fs/bpf -mindepth 1 | grep -v '\\.debug$' || true",
		"CNI configurations": "ls /etc/cni/net.d | grep -v '^$' || true",
		"the plugin":         "ls /opt/cni/bin | grep hawser || true",
		"files of the agent": "ls -A /var/run/cilium /run/cilium " + l.stateDir + " 2>/dev/null | grep -v : | grep . || true",
		"filters at devices": "tc filter show dev eth0 ingress; tc filter show dev eth0 egress",
		"network namespaces": "ls /run/netns 2>/dev/null | grep cni- || true",
	} {
		out, err := on(script)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s on %s: %w", what, node, err))
		}
		if out = strings.TrimSpace(out); out != "" {
			errs = append(errs, fmt.Errorf("%s left on %s:\n%s", what, node, out))
		}
	}
	return errors.Join(errs...)
}

// until repeats a request until its outcome is as wanted, for some seconds: endpoints, policies and
// names need a moment to be everywhere.
func (l *lab) until(ctx context.Context, want bool, pod, to string) error {
	for deadline := time.Now().Add(40 * time.Second); ; {
		out, err := l.k(ctx, "-n", "chart", "exec", pod, "--", "curl", "-sS", "-m", "2", "-o", "/dev/null", "-w", "%{http_code}", "http://"+to+"/hostname")
		if (err == nil) == want {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("reached: %v, want %v: %s %w", err == nil, want, out, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
