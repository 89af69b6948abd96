// Package testenv gives tests the real thing instead of a mock: network namespaces, cgroups,
// plugins, and checks that a test left nothing behind. Servers are packages of their own (kubeapi
// here, kvstoretest beside the libraries), so that who needs none does not link them.
//
// It is for tests only. No package of the product imports it (internal/archtest sees to that).
// Everything a function of this package creates is removed when the test that asked for it ends,
// whether it passed or not. Names are never shared between tests, so all of it may be used from
// parallel tests, except CheckLeaks, which compares the whole process before and after.
package testenv
