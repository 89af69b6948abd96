package sandbox

import (
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// demoPolicies are what the demo enforces; Up copies them to the sandbox, where they can be edited.
//
//go:embed demo/*.yaml
var demoPolicies embed.FS

// demoPods are three tiers of two replicas, each tier spread over the first two nodes.
func demoPods(nodes int) []PodSpec {
	var out []PodSpec
	for _, tier := range []struct {
		name string
		port uint16
	}{{"front", 80}, {"api", 8080}, {"db", 5432}} {
		for replica := 1; replica <= 2; replica++ {
			p := PodSpec{
				Name: fmt.Sprintf("%s-%d", tier.name, replica), Node: fmt.Sprintf("n%d", min(replica, nodes)),
				Labels: map[string]string{"app": "shop", "tier": tier.name}, Ports: []uint16{tier.port}, peers: demoPeers(tier.name),
			}
			if p.Name == "api-2" {
				p.Labels["quarantine"] = "true"
			}
			out = append(out, p)
		}
	}
	return out
}

// demoPeers are whom a tier of the demo, or the world, talks to all the time, so that there is
// something to see: what the policies allow more often than what they refuse.
func demoPeers(who string) []peer {
	switch who {
	case worldName:
		return []peer{{"front-1", 80, TCP}, {"front-2", 80, TCP}, {"front-1", 80, TCP}, {"front-2", 80, TCP}, {"db-1", 5432, TCP}}
	case "front":
		return []peer{{"api-1", 8080, TCP}, {"api-2", 8080, TCP}, {"api-1", 8080, TCP}, {"api-2", 8080, TCP}, {"db-1", 5432, TCP}}
	case "api": // of which one is in quarantine
		return []peer{{"db-1", 5432, TCP}, {"db-2", 5432, TCP}, {worldName, worldPort, TCP}}
	}
	return []peer{{worldName, 53, UDP}}
}

// writeDemoPolicies installs the policies. Agents that start later have them before their first
// pod; agents that run already notice them a moment later.
func (s *Sandbox) writeDemoPolicies() error {
	names, err := fs.Glob(demoPolicies, "demo/*.yaml")
	if err != nil {
		return err
	}
	for _, name := range names {
		data, err := demoPolicies.ReadFile(name)
		if err != nil {
			return err
		}
		// The agents read the directory while it is written.
		if err := atomicfile.Write(filepath.Join(s.PolicyDir(), filepath.Base(name)), data, 0o644, atomicfile.Process); err != nil {
			return err
		}
	}
	s.say("%s in %s", policies(len(names)), s.PolicyDir())
	return nil
}

// runDemo starts the pods of the demo.
func (s *Sandbox) runDemo(ctx context.Context, st *state) error {
	for _, p := range demoPods(len(st.Nodes)) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := s.run(ctx, st, p); err != nil {
			return err
		}
	}
	return nil
}

func policies(n int) string {
	if n == 1 {
		return "1 policy"
	}
	return fmt.Sprintf("%d policies", n)
}

// PrintNext writes what to try in a sandbox that is up.
func (s *Sandbox) PrintNext(w io.Writer, demo bool) {
	name := ""
	if s.cfg.Name != Defaults().Name {
		name = " --name " + s.cfg.Name
	}
	cmd := machine.Typed(s.cfg.Self...)
	fmt.Fprintf(w, "\n%s\n", s.paint.Bold("Try next:"))
	var lines [][2]string
	line := func(args, what string) { lines = append(lines, [2]string{cmd + " " + args, what}) }
	if demo {
		line("exec"+name+" front-1 -- curl -s http://api-1:8080", "the front calls the api")
		line("exec"+name+" n1 -- hawser endpoint list", "what the agent of n1 knows")
		line("exec"+name+" n1 -- hawser observe --verdict DROPPED", "who was refused what, by name, on all nodes")
		line("exec"+name+" n2 -- hawser monitor", "drops and verdicts as they happen")
		line("run"+name+" guest --labels tier=front", "a pod that the policies take for a front")
	} else {
		line("run"+name+" web --node n1 --labels app=web", "start a pod")
	}
	line("reach"+name, "who reaches whom, and whether that is right")
	line("down"+name, "remove all of it")
	width := 0
	for _, l := range lines {
		width = max(width, len(l[0]))
	}
	for _, l := range lines {
		fmt.Fprintf(w, "  %-*s   %s\n", width, l[0], s.paint.Dim(l[1]))
	}
	if st, err := s.running(); err == nil && st.PageURL != "" {
		fmt.Fprintf(w, "  %s   %s\n", st.PageURL, s.paint.Dim("who talks to whom, in a browser"))
	}
	fmt.Fprintf(w, "  %s\n", s.paint.Dim("edit the files in "+s.PolicyDir()+" and run reach again: the agents follow them"))
}
