// Package deploy is what Grapevine is deployed with, beside the injector of deploy/inject: the Helm chart, the
// recipes of the images, examples, dashboards and alerts. There is no code here but the tests that hold all of it to
// what the binaries really take, serve and measure.
package deploy
