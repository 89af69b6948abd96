package network

import "fmt"

// KeepPrograms has the programs of restored endpoints stay in charge if they work on other maps
// than this agent's: those of another layout, or maps whose pins were removed. They know the rules,
// identities and addresses that were in force; the new maps know nothing until everything has been
// observed. What is to be judged by the new maps before that is locked there (see
// enforcement.Policy).
func (n *Network) KeepPrograms() error {
	var pods []int
	for _, row := range n.cfg.Registry.List() {
		pods = append(pods, row.IfIndex)
	}
	kept, err := n.cfg.Programs.KeepOthers(pods)
	if err != nil {
		return fmt.Errorf("find the programs of before: %w", err)
	}
	if kept {
		n.cfg.Log.Info("the kernel's maps are new; the programs and maps of before stay in charge until these hold everything")
		n.setKeeping(true)
	}
	return nil
}

// ReplacePrograms puts this agent's programs in the place of those of before, now that its maps
// hold everything.
func (n *Network) ReplacePrograms() {
	if !n.Keeping() {
		return
	}
	err := n.cfg.Programs.ReplaceOthers()
	n.cfg.Components.Report("programs", err, "the programs and maps of before were replaced")
	if err != nil {
		n.cfg.Log.Error("some programs and maps of before are still in charge; this is tried again", "error", err)
		return
	}
	n.setKeeping(false)
	n.removeGuard()
	n.cfg.Log.Info("the programs and maps of before were replaced")
}

// removeGuard removes what kept pods from addresses before the programs did.
func (n *Network) removeGuard() {
	if err := n.cfg.Links.RemoveGuard(); err != nil {
		n.cfg.Log.Warn("an nftables table of an agent before this one stays", "error", err)
	}
}

// Keeping reports whether the programs of an agent before are in charge.
func (n *Network) Keeping() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.keeping
}

func (n *Network) setKeeping(keeping bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keeping = keeping
}
