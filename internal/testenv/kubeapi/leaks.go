package kubeapi

import (
	"go.uber.org/goleak"

	"github.com/hawser-net/hawser/internal/testenv"
)

// VerifyTestMain runs the tests of a package that starts servers, for its TestMain, and fails if
// they leave goroutines behind.
func VerifyTestMain(m goleak.TestingM, ignore ...goleak.Option) {
	// The embedded etcd of a server, and klog's, stay for the life of the process.
	testenv.VerifyTestMain(m, append(ignore,
		goleak.IgnoreAnyFunction("go.etcd.io/etcd/client/pkg/v3/fileutil.purgeFile"),
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))...)
}
