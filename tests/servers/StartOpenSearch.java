import static org.codelibs.opensearch.runner.OpenSearchRunner.newConfigs;

import org.codelibs.opensearch.runner.OpenSearchRunner;

/** Runs one node over a directory at a port, until the process ends. */
public class StartOpenSearch {
  public static void main(String[] args) throws Exception {
    OpenSearchRunner runner = new OpenSearchRunner();
    try {
      runner.onBuild((number, settings) -> {
        settings.put("network.host", "127.0.0.1");
        settings.put("http.port", args[1]);
        // Any free port: nothing else connects to it.
        settings.put("transport.port", "0");
        settings.put("discovery.type", "single-node");
        // The disk of a machine with tests may be fuller than 85 %.
        settings.put("cluster.routing.allocation.disk.threshold_enabled", "false");
      }).build(newConfigs().basePath(args[0]).numOfNode(1));
    } catch (Throwable error) {
      // The runner's own program ends without a message.
      error.printStackTrace();
      System.exit(1);
    }
    Thread.sleep(Long.MAX_VALUE);
  }
}
