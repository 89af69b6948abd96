package archtest

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
	"testing"
)

// TestSleepsAreOne finds a select that is a sleep which ends with its context, and nothing else.
func TestSleepsAreOne(t *testing.T) {
	t.Parallel()
	const reason = "write retry.Sleep (pkg/retry), or retry.SleepUnless: one line instead of five, in the same words everywhere"
	goFiles(t, func(path string, fset *token.FileSet, f *ast.File) {
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "pkg/retry/") {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectStmt); ok && len(s.Body.List) == 2 && sleeps(s.Body.List[0], s.Body.List[1]) {
				t.Errorf("%s: %s", fset.Position(s.Pos()), reason)
			}
			return true
		})
	})
}

// sleeps reports whether one case waits for a time, after which nothing is done there, and the
// other one for the end of a context.
func sleeps(a, b ast.Stmt) bool {
	for _, c := range [][2]ast.Stmt{{a, b}, {b, a}} {
		if strings.HasPrefix(waitsFor(c[0]), "<-time.After(") && len(c[0].(*ast.CommClause).Body) == 0 && strings.HasSuffix(waitsFor(c[1]), "tx.Done()") {
			return true
		}
	}
	return false
}

func waitsFor(s ast.Stmt) string {
	e, ok := s.(*ast.CommClause).Comm.(*ast.ExprStmt)
	if !ok {
		return ""
	}
	return types.ExprString(e.X)
}
